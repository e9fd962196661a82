"""Sharding: devices in; a mesh, layouts by logical axis names, and processes that start together out."""

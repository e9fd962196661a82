"""Environments: the protocol, tools, task sources, sandboxes and the built-in games."""

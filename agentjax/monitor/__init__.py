"""Monitoring: metrics of each step in; a live view, a run folder, curves and a summary out."""

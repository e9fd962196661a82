"""Benchmarks: what `agentjax bench` measures, each beside a baseline or the roofline of the same run."""

"""Configs: one experiment a file.

A config imports `default_config` from `agentjax.config`, changes what the experiment is about, and nothing imports a
config: programs open it by path or by name, `agentjax train --config=quickstart`.
"""

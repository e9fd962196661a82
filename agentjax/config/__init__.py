"""Configs: an experiment file and overrides in, frozen dataclasses out, checked before anything compiles."""

from agentjax.config.checks import validate as validate
from agentjax.config.experiment import Config as Config
from agentjax.config.experiment import describe as describe
from agentjax.config.file import default_config as default_config
from agentjax.config.file import from_json as from_json
from agentjax.config.file import load as load
from agentjax.config.file import to_json as to_json
from agentjax.config.sections import CheckpointConfig as CheckpointConfig
from agentjax.config.sections import EnvConfig as EnvConfig
from agentjax.config.sections import EvalConfig as EvalConfig
from agentjax.config.sections import MonitorConfig as MonitorConfig
from agentjax.config.sections import RolloutConfig as RolloutConfig
from agentjax.config.sections import SFTConfig as SFTConfig
from agentjax.config.sections import TokenizerConfig as TokenizerConfig
from agentjax.config.sections import TrainConfig as TrainConfig

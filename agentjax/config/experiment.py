"""Config: one experiment, as typed and frozen sections; and what it will do, in a few lines."""

import dataclasses
from dataclasses import field
from pathlib import Path

from agentjax.config.sections import (
    ChatConfig,
    CheckpointConfig,
    EnvConfig,
    EvalConfig,
    MonitorConfig,
    RolloutConfig,
    SFTConfig,
    TokenizerConfig,
    TrainConfig,
)
from agentjax.envs.api import Budget
from agentjax.envs.sandbox import SandboxConfig
from agentjax.learn.config import GRPOConfig, LearnerConfig, OptimizerConfig
from agentjax.models.config import ModelConfig
from agentjax.sharding.mesh import MeshConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """An experiment. `agentjax.config.validate` checks what no section can check alone."""

    name: str = ""  # names the run; empty: the name of the config file
    seed: int = 0  # seeds weights, tasks, demonstrations and sampling
    run_dir: str = ""  # where the run is kept; empty: runs/<name>
    model: ModelConfig = field(default_factory=ModelConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    budget: Budget = field(default_factory=Budget)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algo: GRPOConfig = field(default_factory=GRPOConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)  # of GRPO
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}.")
        name = self.name or "run"
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "run_dir", self.run_dir or f"runs/{name}")

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run_dir)


def describe(config: Config) -> str:
    """What the experiment will do, in a few lines for people."""
    model, train, budget = config.model, config.train, config.budget
    lines = [
        f"{config.name}: {config.env.name}, at most {budget.max_turns} turns and {budget.total_tokens} tokens an episode",
        f"  model  {model.num_layers} layers of {model.d_model}, {model.num_heads} heads, "
        f"vocabulary {model.vocab_size}, {model.dtype}",
        f"  SFT    {_describe_sft(config)}",
        f"  GRPO   {train.steps} updates of {train.prompts_per_step} prompts x {config.algo.group_size} samples"
        + (f", until held-out success reaches {train.target:g}" if train.target is not None else ""),
        f"  eval   {config.eval.tasks} held-out tasks, greedy"
        + (f", and pass@{config.eval.k} of {config.eval.samples} samples" if config.eval.samples else "")
        + (f", every {train.eval_every} updates" if train.eval_every else ", before and after"),
        f"  run    {config.run_dir}" + ("" if config.checkpoint.resume else ", from the start"),
    ]
    return "\n".join(lines)


def _describe_sft(config: Config) -> str:
    if not config.sft.steps:
        return "none"
    players = ", ".join(f"{name} {share:.0%}" for name, share in config.env.players.items())
    return f"{config.sft.steps} updates of {config.sft.batch_size} demonstrations" + (
        f" ({players})" if players else ""
    )

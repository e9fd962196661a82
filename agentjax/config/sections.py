"""The sections of a config, each a frozen dataclass that checks itself. Every field has its meaning and unit beside it."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from agentjax.chat.tokenizer import DIGIT_PAIRS
from agentjax.learn.config import OptimizerConfig
from agentjax.rollout.request import SamplingParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer, trained on transcripts of the environment's own demonstrations."""

    vocab_size: int = 1024  # entries, special tokens included
    transcripts: int = 512  # demonstration episodes to train on
    pattern: str = DIGIT_PAIRS  # regex: text is cut where it matches, and tokens never cross a cut

    def __post_init__(self):
        _check_minimum("tokenizer", self, vocab_size=265, transcripts=1)  # 256 bytes and 9 special tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """How messages become tokens."""

    format: str = "chatml_hermes"  # name of a chat format


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """What is played, and who demonstrates it."""

    name: str = "python_math"  # a built-in environment, or "module:Class"
    args: Mapping[str, Any] = field(default_factory=dict)  # passed to the environment
    players: Mapping[str, float] = field(default_factory=dict)  # share of demonstrations of each scripted player

    def __post_init__(self):
        if not self.players:
            return
        if any(share < 0 for share in self.players.values()):
            raise ValueError(f"env.players must be shares >= 0, got {dict(self.players)}.")
        if not math.isclose(sum(self.players.values()), 1, abs_tol=1e-6):
            total = sum(self.players.values())
            raise ValueError(f"env.players must sum to 1, got {total:g} in all: {dict(self.players)}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """The sampling engine and the episodes around it."""

    slots: int = 64  # sequences decoded together, per shard of the mesh (data x fsdp)
    block_steps: int = 16  # tokens each slot decodes between two exchanges with the host, W
    chunk: int = 64  # tokens of prompt or observation that one prefill takes from a sequence, C
    prefill_rows: int = 16  # sequences that one prefill serves, at most `slots`
    page_size: int = 16  # tokens in a page of the key-value cache
    pages: int = 0  # pages per shard; 0: enough for every slot to hold a whole trajectory
    pages_per_block: int = 4  # pages that attention reads at a time
    driver: Literal["callback", "python"] = "callback"  # who loops over blocks: the device, or Python (to debug)
    layers: Literal["scan", "unroll", "auto"] = "auto"  # unrolled layers decode faster on CPU and compile slower
    temperature: float = 1.0  # divides the logits
    top_k: int = 0  # keep this many of the likeliest tokens; 0: all
    top_p: float = 1.0  # keep the likeliest tokens up to this probability; 1: all
    max_concurrent: int = 256  # episodes in flight, per process
    in_flight_groups: int = 0  # groups begun ahead that go on over an update (partial rollouts); 0: on-policy
    retries: int = 2  # times an episode is played again after a fault of the infrastructure
    mismatch_budget: float = 1e-2  # mean |sampler - trainer logprob| of an on-policy step, nats; the run stops above it

    def __post_init__(self):
        _check_minimum("rollout", self, slots=1, block_steps=1, chunk=1, prefill_rows=1, page_size=1, pages=0)
        _check_minimum("rollout", self, pages_per_block=1, max_concurrent=1, in_flight_groups=0, retries=0)
        _check_positive("rollout", self, "mismatch_budget")
        if self.prefill_rows > self.slots:
            raise ValueError(
                f"rollout.prefill_rows ({self.prefill_rows}) must not exceed rollout.slots ({self.slots}): "
                f"there is one row for each sequence that waits."
            )
        SamplingParams(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    @property
    def sampling(self) -> SamplingParams:
        """How tokens are drawn while training."""
        return SamplingParams(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SFTConfig:
    """The cold start: supervised training on demonstrations that scripted players made in the real environment."""

    steps: int = 400  # updates; 0: no cold start
    batch_size: int = 64  # demonstrations per update
    demonstrations: int = 4096  # distinct episodes to learn from
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self):
        _check_minimum("sft", self, steps=0, batch_size=1, demonstrations=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The GRPO loop."""

    steps: int = 100  # updates
    prompts_per_step: int = 16  # groups per update, P
    eval_every: int = 10  # updates between evaluations; 0: only before the first and after the last
    target: float | None = None  # held-out greedy success in [0, 1] that ends training early; None: never

    def __post_init__(self):
        _check_minimum("train", self, steps=0, prompts_per_step=1, eval_every=0)
        if self.target is not None and not 0 <= self.target <= 1:
            raise ValueError(f"train.target must be a success rate in [0, 1], or None, got {self.target}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation on held-out tasks: once greedily, then by pass@k if `samples` are asked for."""

    tasks: int = 256  # held-out tasks
    samples: int = 0  # samples per task for pass@k, at the temperature of the rollout; 0: greedy only
    k: int = 1  # pass@k: chance that one of k samples succeeds

    def __post_init__(self):
        _check_minimum("eval", self, tasks=1, samples=0, k=1)
        if self.samples and self.k > self.samples:
            raise ValueError(f"eval.k ({self.k}) must not exceed eval.samples ({self.samples}).")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is saved, and whether a run goes on from it."""

    every: int = 10  # GRPO updates between checkpoints; 0: only when a phase ends or the run is stopped
    keep: int = 2  # newest checkpoints kept
    resume: bool = True  # go on from the newest checkpoint of the run folder, if it has one

    def __post_init__(self):
        _check_minimum("checkpoint", self, every=0, keep=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """What a person sees while it runs, and what is kept of it."""

    live: Literal["auto", "on", "off"] = "auto"  # the live view; auto: if the output is a terminal
    tensorboard: bool = True  # write TensorBoard events
    trajectories_every: int = 10  # updates between steps whose trajectories are kept; 0: none are

    def __post_init__(self):
        _check_minimum("monitor", self, trajectories_every=0)


def _check_minimum(section: str, config: Any, **minima: int) -> None:
    for name, minimum in minima.items():
        if (value := getattr(config, name)) < minimum:
            raise ValueError(f"{section}.{name} must be >= {minimum}, got {value}.")


def _check_positive(section: str, config: Any, name: str) -> None:
    if not 0 < (value := getattr(config, name)) < math.inf:
        raise ValueError(f"{section}.{name} must be a finite number > 0, got {value}.")

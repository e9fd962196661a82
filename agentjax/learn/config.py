"""Settings of the learner, checked where they are made: sections `algo`, `optimizer` and `learner` of a config."""

import dataclasses
import math

from agentjax.learn.advantages import ADVANTAGES
from agentjax.learn.losses import KL_ESTIMATORS
from agentjax.learn.packing import PackShape
from agentjax.learn.registry import lookup

NORMALISATIONS = ("token_mean", "constant")
OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("constant", "cosine", "linear")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """How rewards become a loss. The defaults are GRPO advantages with DAPO's clip and token mean, and no reference."""

    advantage: str = "grpo"  # estimator, a name in learn/advantages.py: grpo, dr_grpo, rloo
    group_size: int = 8  # samples per prompt, G
    clip_low: float = 0.2  # ratio kept above 1 - clip_low
    clip_high: float = 0.28  # ratio kept below 1 + clip_high
    kl_coef: float = 0.0  # weight of the KL to the frozen reference; 0: no reference is computed
    kl_estimator: str = "k3"  # k1, k2 or k3; k1 measures but does not hold back, see learn/losses.py
    tis_cap: float | None = 2.0  # largest importance weight of trainer over sampler; None or 0: no correction
    normalisation: str = "token_mean"  # token_mean, or constant: divided by constant_length a trajectory
    constant_length: int = 1024  # tokens a trajectory under "constant", usually its budget of sampled tokens
    minibatches: int = 1  # updates per step, each on its own share of the trajectories

    def __post_init__(self):
        lookup(ADVANTAGES, self.advantage, field="algo.advantage")
        lookup(KL_ESTIMATORS, self.kl_estimator, field="algo.kl_estimator")
        lookup(dict.fromkeys(NORMALISATIONS), self.normalisation, field="algo.normalisation")
        _require(self.group_size >= 2, "algo.group_size", ">= 2 to form a group baseline", self.group_size)
        _require(0 <= self.clip_low <= 1, "algo.clip_low", "in [0, 1]", self.clip_low)
        _require(self.clip_high >= 0, "algo.clip_high", ">= 0", self.clip_high)
        _require(self.kl_coef >= 0, "algo.kl_coef", ">= 0", self.kl_coef)
        _require(not self.tis_cap or self.tis_cap >= 1, "algo.tis_cap", ">= 1, or None for no correction", self.tis_cap)
        _require(self.constant_length >= 1, "algo.constant_length", ">= 1", self.constant_length)
        _require(self.minibatches >= 1, "algo.minibatches", ">= 1", self.minibatches)


def _require(holds: bool, field: str, law: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{field} must be {law}, got {value}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """An optimiser and its learning rate over the updates."""

    name: str = "adamw"  # adamw, or muon: matrices move by orthogonalised momentum, all else as by AdamW
    muon_rate: float = 10.0  # with muon: rate of the matrices, as a multiple of the learning rate
    learning_rate: float = 1e-6  # peak, reached after the warm-up
    warmup_steps: int = 0  # updates over which the rate rises linearly from 0
    schedule: str = "constant"  # constant, cosine or linear, after the warm-up
    decay_steps: int | None = None  # updates from the first to the end of a cosine or linear schedule
    end_fraction: float = 0.0  # share of the peak left at the end of the schedule
    b1: float = 0.9  # decay of the first moment
    b2: float = 0.95  # decay of the second moment
    eps: float = 1e-8  # added to the root of the second moment
    weight_decay: float = 0.0  # decoupled, times the rate; not on norms and embeddings
    max_grad_norm: float = 1.0  # gradients are scaled down to this global norm

    def __post_init__(self):
        lookup(dict.fromkeys(OPTIMIZERS), self.name, field="optimizer.name")
        _require(self.muon_rate > 0, "optimizer.muon_rate", "> 0", self.muon_rate)
        lookup(dict.fromkeys(SCHEDULES), self.schedule, field="optimizer.schedule")
        _require(self.learning_rate > 0, "optimizer.learning_rate", "> 0", self.learning_rate)
        _require(self.warmup_steps >= 0, "optimizer.warmup_steps", ">= 0", self.warmup_steps)
        if self.schedule != "constant":
            enough = self.decay_steps is not None and self.decay_steps > self.warmup_steps
            law = f"more than optimizer.warmup_steps={self.warmup_steps} for a {self.schedule} schedule"
            _require(enough, "optimizer.decay_steps", law, self.decay_steps)
        _require(0 <= self.end_fraction <= 1, "optimizer.end_fraction", "in [0, 1]", self.end_fraction)
        _require(0 <= self.b1 < 1, "optimizer.b1", "in [0, 1)", self.b1)
        _require(0 <= self.b2 < 1, "optimizer.b2", "in [0, 1)", self.b2)
        _require(self.eps > 0, "optimizer.eps", "> 0", self.eps)
        _require(self.weight_decay >= 0, "optimizer.weight_decay", ">= 0", self.weight_decay)
        _require(self.max_grad_norm > 0, "optimizer.max_grad_norm", "> 0", self.max_grad_norm)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """How an update is laid out in memory and time; none of it changes what is learnt."""

    row_length: int = 2048  # tokens a packed row; no trajectory may be longer
    rows: int = 8  # rows per microbatch, divisible by mesh data x fsdp
    microbatches: int | None = None  # most microbatches in an update; None: enough for a full step
    logprob_chunk: int | None = None  # tokens a row whose logits exist at once; None: the whole row
    remat: bool = False  # recompute each layer in the backward pass: less memory, a third more time
    max_skipped: int = 5  # updates skipped in a row, for a non-finite loss or gradient, that end the run

    def __post_init__(self):
        _require(self.row_length >= 2, "learner.row_length", ">= 2", self.row_length)
        _require(self.rows >= 1, "learner.rows", ">= 1", self.rows)
        _require(self.microbatches is None or self.microbatches >= 1, "learner.microbatches", ">= 1", self.microbatches)
        chunk = self.logprob_chunk
        divides = chunk is None or (chunk >= 1 and self.row_length % chunk == 0)
        _require(divides, "learner.logprob_chunk", f"a divisor of learner.row_length={self.row_length}", chunk)
        _require(self.max_skipped >= 1, "learner.max_skipped", ">= 1", self.max_skipped)

    def shape(self, *, trajectories: int, max_tokens: int) -> PackShape:
        """The fixed shape of an update.

        Args:
            trajectories: Most trajectories in an update.
            max_tokens: Most tokens in a trajectory, its prompt included.

        Returns:
            The shape with `microbatches`, or with as many as any such update can need.

        Raises:
            ValueError: If one trajectory may not fit a row.
        """
        law = f">= the {max_tokens} tokens that the budget allows a trajectory"
        _require(self.row_length >= max_tokens, "learner.row_length", law, self.row_length)
        # First-fit opens a row only when no other has room, so every row but the last holds at least this many.
        per_row = self.row_length // max_tokens
        needed = math.ceil(math.ceil(trajectories / per_row) / self.rows)
        return PackShape(microbatches=self.microbatches or needed, rows=self.rows, row_length=self.row_length)

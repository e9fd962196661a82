"""Trajectories: what one episode sampled, saw and earned, token by token."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32


class Source(enum.StrEnum):
    """Who wrote the tokens of a segment. Loss is taken on `POLICY` alone."""

    PROMPT = "prompt"
    POLICY = "policy"
    ENVIRONMENT = "environment"
    TEMPLATE = "template"


class StopReason(enum.StrEnum):
    """Why an episode ended: the policy's own ends first, then the faults of the infrastructure."""

    DONE = "done"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    BAD_CALLS = "bad_calls"
    ENV_CRASH = "env_crash"
    TIMEOUT = "timeout"
    SANDBOX_LOST = "sandbox_lost"

    @property
    def is_fault(self) -> bool:
        """Whether the infrastructure failed: such a trajectory has no reward and is never trained on."""
        return self in (StopReason.ENV_CRASH, StopReason.TIMEOUT, StopReason.SANDBOX_LOST)


@dataclasses.dataclass(frozen=True)
class Segment:
    """A run of tokens from one source. Policy segments carry, per token, what the sampler knew.

    Attributes:
        source: Who wrote the tokens.
        ids: Token ids, as sampled or as inserted; never re-encoded.
        logprobs: Policy segments only: log-probability under the sampler, after temperature, top-k and top-p.
        policy_versions: Policy segments only: the number of updates the sampling weights had seen.
    """

    source: Source
    ids: Int32[np.ndarray, " T"]
    logprobs: Float32[np.ndarray, " T"] | None = None
    policy_versions: Int32[np.ndarray, " T"] | None = None


@dataclasses.dataclass(frozen=True)
class ToolUse:
    """One tool call of a turn, as parsed, and how it went.

    Attributes:
        name: Tool the policy named.
        arguments: Raw argument text as sampled.
        ok: Whether the tool ran and returned normally.
        result: What the policy was shown.
        seconds: Wall time of the tool.
    """

    name: str
    arguments: str
    ok: bool
    result: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Turn:
    """One sampled message and the environment's answer.

    Attributes:
        text: Decoded sample, without the stop token; for people, never re-encoded.
        reasoning: Text inside think tags, if any.
        tools: The tool calls of the turn.
        parse_error: What was wrong with a malformed call, if one was.
        observation: What the environment answered, as text; empty at the end.
        finish: "stop", "length", "tool_calls" or "abort".
        reward: Reward given at this turn, if any.
        model_s: Wall seconds from request to the last sampled token.
        tool_s: Wall seconds the environment took.
    """

    text: str
    reasoning: str | None
    tools: tuple[ToolUse, ...]
    parse_error: str | None
    observation: str
    finish: str
    reward: float | None
    model_s: float
    tool_s: float


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One training row: an append-only token stream, and the record of how it came about.

    Attributes:
        task_id: Task the episode played.
        group_id: Trajectories with one group share task and start state, and are compared with each other.
        sample_index: Position within the group.
        seed: Sampling seed of this trajectory.
        branch: 0, or the number of history rewrites before this row began.
        segments: The token stream, in order.
        turns: Per-turn records.
        reward: Final return; None exactly when `stop.is_fault`.
        reward_parts: Named components of the reward.
        stop: Why the episode ended.
        error: Detail of a fault or of the last policy error.
        metrics: Named numbers the environment reported.
        fingerprint: Identifies model and config that produced the row.
    """

    task_id: str
    group_id: str
    sample_index: int
    seed: int
    segments: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    reward: float | None
    stop: StopReason
    branch: int = 0
    reward_parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    error: str | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    fingerprint: str = ""

    @property
    def tokens(self) -> Int32[np.ndarray, " T"]:
        """The whole stream of ids."""
        return np.concatenate([s.ids for s in self.segments]).astype(np.int32)

    @property
    def loss_mask(self) -> Bool[np.ndarray, " T"]:
        """True where the policy sampled the token; shares its index with `tokens`."""
        return np.concatenate([np.full(len(s.ids), s.source is Source.POLICY) for s in self.segments])

    @property
    def sampler_logprobs(self) -> Float32[np.ndarray, " T"]:
        """Sampler log-probabilities, 0 where the policy did not sample; shares its index with `tokens`."""
        rows = [np.zeros(len(s.ids), np.float32) if s.logprobs is None else s.logprobs for s in self.segments]
        return np.concatenate(rows).astype(np.float32)

    @property
    def policy_versions(self) -> Int32[np.ndarray, " T"]:
        """Policy version of each sampled token, -1 elsewhere; shares its index with `tokens`."""
        rows = [np.full(len(s.ids), -1) if s.policy_versions is None else s.policy_versions for s in self.segments]
        return np.concatenate(rows).astype(np.int32)

    @property
    def info(self) -> dict[str, Any]:
        """The few facts a person asks for first."""
        return {
            "task": self.task_id,
            "group": self.group_id,
            "sample": self.sample_index,
            "reward": self.reward,
            "stop": str(self.stop),
            "turns": len(self.turns),
            "tokens": sum(len(s.ids) for s in self.segments),
        }

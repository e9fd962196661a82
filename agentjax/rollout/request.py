"""What a sampler is asked and what it answers: a token stream and a budget in, one sampled turn out."""

import dataclasses
from typing import Literal, Protocol

import numpy as np
from jaxtyping import Float32, Int32

Stop = Literal["stop_id", "stop_string", "length", "abort"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn from the policy's logits. The defaults sample the policy itself.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens with at least this probability; 1 keeps all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if self.temperature < 0:
            raise ValueError(f"rollout.temperature must be >= 0 (0 takes the likeliest token), got {self.temperature}.")
        if self.top_k < 0:
            raise ValueError(f"rollout.top_k must be >= 0 (0 keeps every token), got {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"rollout.top_p must lie in (0, 1] (1 keeps every token), got {self.top_p}.")


@dataclasses.dataclass(frozen=True)
class TurnRequest:
    """One turn to sample.

    The key of each draw is `fold_in(fold_in(run_key, trajectory), position)`, so the answer depends on nothing but
    this request and the weights: not on slot, company or order of arrival.

    Attributes:
        trajectory: Seed of the trajectory, a uint32.
        group: Affinity: requests of one group share a shard and its tree of cached prefixes.
        ids: The whole stream so far, this turn's own `sampled` tokens not included.
        max_tokens: Tokens this turn may have, `sampled` and the stop token included.
        stop_ids: Tokens that end the turn; the one sampled is the last of the answer.
        stop_strings: Texts that end the turn; the answer ends with the token that completed one.
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens with at least this probability; 1 keeps all.
        sampled: Tokens of this turn that were sampled earlier (a partial rollout), which the answer begins with.
        sampled_logprobs: Their sampler log-probabilities.
        sampled_versions: Their policy versions.
    """

    trajectory: int
    group: str
    ids: Int32[np.ndarray, " T"]
    max_tokens: int
    stop_ids: tuple[int, ...]
    stop_strings: tuple[str, ...] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    sampled: tuple[int, ...] = ()
    sampled_logprobs: tuple[float, ...] = ()
    sampled_versions: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class SampledTurn:
    """The tokens of one turn, with what the sampler knew of each. The three arrays share one index.

    Attributes:
        ids: Sampled ids, the stop token included.
        logprobs: Log-probability of each under the sampler, after temperature, top-k and top-p.
        policy_versions: Updates the weights had seen when each was sampled.
        stop: What ended the turn. "abort": the sampler was told to give the turn up; it is not complete.
        stop_string: The stop string that ended it, if one did.
        seconds: Wall time from request to last token.
    """

    ids: Int32[np.ndarray, " T"]
    logprobs: Float32[np.ndarray, " T"]
    policy_versions: Int32[np.ndarray, " T"]
    stop: Stop
    stop_string: str | None
    seconds: float


class Sampler(Protocol):
    """Anything that continues a token stream: the engine, or a script in a test."""

    async def sample(self, request: TurnRequest) -> SampledTurn:
        """Sample one turn.

        Args:
            request: The stream so far and the turn's budget.

        Returns:
            At least one and at most `request.max_tokens` tokens.
        """
        ...

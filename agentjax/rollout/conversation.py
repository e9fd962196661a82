"""Conversations: messages and sampled turns in, append-only token streams out. One stream per branch of the history."""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from agentjax.chat.format import ChatFormat
from agentjax.envs.api import Budget, Message, Step, ToolSpec
from agentjax.rollout.env_calls import Fault, env_to_blame
from agentjax.rollout.observations import cut_observation
from agentjax.rollout.progress import Tape
from agentjax.trajectory import Segment, Source, StopReason, Turn


@dataclasses.dataclass
class Branch:
    """A training row in the making.

    Attributes:
        seed: Sampling seed of the row.
        segments: Its token stream, beginning with a prompt.
        turns: Records of its turns.
    """

    seed: int
    segments: list[Segment]
    turns: list[Turn] = dataclasses.field(default_factory=list)

    @property
    def ids(self) -> Int32[np.ndarray, " T"]:
        """The whole stream."""
        return np.concatenate([segment.ids for segment in self.segments])

    @property
    def last_id(self) -> int:
        """The last token."""
        return int(self.segments[-1].ids[-1])

    def __len__(self) -> int:
        return sum(len(segment.ids) for segment in self.segments)


class Conversation:
    """The history of one episode, as messages and as ids.

    An observation is appended to the stream as a delta. Where the history changes, because the environment rewrote it
    or messages were to be shown once, a new branch begins: the whole history is rendered again, as its prompt.

    Attributes:
        branches: The streams so far; the last one grows.
    """

    def __init__(self, fmt: ChatFormat, budget: Budget, seed: int, tape: Tape):
        """Start empty.

        Args:
            fmt: Between messages and ids.
            budget: Its `turn_tokens`, `total_tokens` and `obs_tokens` are kept.
            seed: Sampling seed of the episode.
            tape: What an earlier run of the episode inserted, to compare with.
        """
        self.branches: list[Branch] = []
        self._fmt = fmt
        self._budget = budget
        self._seed = seed
        self._tape = tape
        self._tools: tuple[ToolSpec, ...] = ()
        self._history: list[Message] = []
        self._shown_once = 0  # messages at the end of the history that the next turn sees and later ones do not

    @property
    def room(self) -> int:
        """Tokens the next turn may have."""
        return min(self._budget.turn_tokens, self._budget.total_tokens - len(self.branches[-1]))

    def begin(self, messages: Sequence[Message], tools: tuple[ToolSpec, ...]) -> None:
        """Render the prompt.

        Raises:
            Fault: If it leaves no room for a turn.
        """
        self._tools = tools
        if not self._branch_off(list(messages)):
            detail = f"the prompt leaves no room within budget.total_tokens={self._budget.total_tokens}"
            raise Fault(StopReason.ENV_CRASH, detail, retryable=False)

    def say(self, segment: Segment, message: Message, record: Turn) -> None:
        """Append a sampled turn: its tokens to the stream, its message to the history."""
        self.branches[-1].segments.append(segment)
        self.branches[-1].turns.append(record)
        self._history = self._history[: len(self._history) - self._shown_once] + [message]

    def cut(self, step: Step) -> Step:
        """The step with an observation of at most `obs_tokens`; a rewritten history is a prompt and stays whole."""
        if step.rewritten:
            return step
        with env_to_blame("messages"):
            messages = cut_observation(step.messages, self._budget.obs_tokens, self._count)
        return dataclasses.replace(step, messages=messages)

    def observe(self, step: Step) -> bool:
        """Append an observation, or begin a branch. False, and nothing done, if no turn would fit after it."""
        changed = step.rewritten or self._shown_once > 0
        history = list(step.messages) if step.rewritten else self._history + list(step.messages)
        self._shown_once = step.ephemeral
        if changed:
            return self._branch_off(history)
        self._history = history
        branch = self.branches[-1]
        with env_to_blame("messages"):
            delta = self._fmt.delta(step.messages, branch.last_id)
        return self._insert(branch, delta)

    def _branch_off(self, history: list[Message]) -> bool:
        branch = Branch(branch_seed(self._seed, len(self.branches)), [])
        with env_to_blame("messages"):
            ids = self._fmt.prompt(history, self._tools)
        if not self._insert(branch, [Segment(Source.PROMPT, np.asarray(ids, np.int32))]):
            return False
        self._history = history
        self.branches.append(branch)
        return True

    def _insert(self, branch: Branch, segments: Sequence[Segment]) -> bool:
        if len(branch) + sum(len(segment.ids) for segment in segments) >= self._budget.total_tokens:
            return False
        for segment in segments:
            self._tape.compare(segment)
        branch.segments.extend(segments)
        return True

    def _count(self, text: str) -> int:
        return len(self._fmt.tokenizer.encode(text))


def branch_seed(seed: int, branch: int) -> int:
    """Sampling seed of a branch, a uint32: branches share positions, and must not share the draws made there."""
    if branch == 0:
        return seed
    return int.from_bytes(hashlib.blake2s(f"{seed}/{branch}".encode(), digest_size=4).digest(), "little")

"""Chat formats, the interface: messages and tools in, token ids out; sampled ids in, text and tool calls out."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from jaxtyping import Int32

from agentjax.chat.tokenizer import Tokenizer
from agentjax.envs.api import Message, ToolSpec
from agentjax.trajectory import Segment


@dataclasses.dataclass(frozen=True)
class ParsedCall:
    """One tool call found in a sampled turn.

    Attributes:
        name: Tool the policy named, which may not exist.
        arguments: Raw text of a JSON object, exactly as sampled.
        span: First token of the call and the one after its last, tags included; indexes the turn's ids.
    """

    name: str
    arguments: str
    span: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class ParsedTurn:
    """What a sampled turn says.

    Attributes:
        text: Everything outside tool calls and think blocks.
        reasoning: Text inside think blocks; None if there is no such block.
        tool_calls: The calls to run, in order; none if `error` is set.
        error: What was wrong with the turn, for the policy to read; None if nothing was.
    """

    text: str
    reasoning: str | None
    tool_calls: tuple[ParsedCall, ...]
    error: str | None


class ChatFormat(Protocol):
    """Writes messages as ids and reads sampled ids back. Special ids come from the format alone, never from text.

    Law: `prompt` + `render_assistant` + `delta` equals the ids of the whole conversation, rendered at once.

    Attributes:
        name: Its name in configs.
        tokenizer: Encodes and decodes the text.
        stop_ids: Tokens that end a turn; the first is the one the format itself writes.
    """

    name: ClassVar[str]
    tokenizer: Tokenizer
    stop_ids: tuple[int, ...]

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Int32[np.ndarray, " T"]:
        """Ids of a conversation so far, up to where the policy's turn begins."""
        ...

    def delta(self, messages: Sequence[Message], last_id: int) -> tuple[Segment, ...]:
        """Ids that lead from one sampled turn to the next.

        Args:
            messages: The observation.
            last_id: Last token of the sampled turn. If it is not a stop id, the turn was cut off, and the delta closes
                it first.

        Returns:
            Segments of source `TEMPLATE` and `ENVIRONMENT`. Text between two special tokens is encoded in one go, and
            counts as the environment's if any of it is.
        """
        ...

    def render_assistant(self, message: Message) -> Int32[np.ndarray, " T"]:
        """Ids a policy would have sampled to say a message, stop token included. `parse` is its inverse."""
        ...

    def parse(self, ids: Sequence[int] | Int32[np.ndarray, " T"]) -> ParsedTurn:
        """Reads one sampled turn, with or without its stop token. Nothing a policy samples makes it raise."""
        ...

    @classmethod
    def transcript(cls, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """The conversation as text, special tokens by name: what a tokenizer trains on and people read."""
        ...


def message_text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """The text of a message's content, its parts joined.

    Raises:
        ValueError: If a part is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.get("type") != "text":
            raise ValueError(f"This chat format takes text only, got a message part of type {part.get('type')!r}.")
    return "".join(part["text"] for part in content)

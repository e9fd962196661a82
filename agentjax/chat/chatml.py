"""ChatML with Hermes tool calls, the format of Qwen2.5 and Qwen3: messages in, ids out; sampled ids in, calls out."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int32

from agentjax.chat.format import ParsedCall, ParsedTurn, message_text
from agentjax.chat.hermes import read_call
from agentjax.chat.pieces import Piece, encode_pieces
from agentjax.chat.tokenizer import Tokenizer
from agentjax.envs.api import Message, ToolSpec
from agentjax.trajectory import Segment, Source

_GENERATION_PROMPT = "<|im_start|>assistant\n"


class ChatMLHermes:
    """Lays a chat out as Qwen3's template does.

    Unlike the template it keeps the reasoning of every turn and adds no empty think block to the last one, so that
    history is never rewritten.

    Attributes:
        before_tools: Template text between the system message and the tools' schemas.
        after_tools: Template text after the schemas.
    """

    name: ClassVar[str] = "chatml_hermes"
    before_tools: ClassVar[str] = (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    )
    after_tools: ClassVar[str] = (
        "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )

    def __init__(self, tokenizer: Tokenizer):
        """Reads the special ids.

        Raises:
            ValueError: If the tokenizer lacks one of them.
        """
        self.tokenizer = tokenizer
        self.stop_ids: tuple[int, ...] = (tokenizer.special("<|im_end|>"), tokenizer.special("<|endoftext|>"))
        self._blocks = {
            tokenizer.special(f"<{tag}>"): (tag, tokenizer.special(f"</{tag}>")) for tag in ("think", "tool_call")
        }

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Int32[np.ndarray, " T"]:
        """See `ChatFormat.prompt`."""
        return self._ids([*self._conversation(messages, tools), Piece(Source.TEMPLATE, _GENERATION_PROMPT)])

    def delta(self, messages: Sequence[Message], last_id: int) -> tuple[Segment, ...]:
        """See `ChatFormat.delta`. The newline after the stop token is the template's, so the delta begins with it."""
        closing = "\n" if last_id in self.stop_ids else "<|im_end|>\n"
        pieces = [Piece(Source.TEMPLATE, closing), *_turns(messages), Piece(Source.TEMPLATE, _GENERATION_PROMPT)]
        return encode_pieces(pieces, self.tokenizer)

    def render_assistant(self, message: Message) -> Int32[np.ndarray, " T"]:
        """See `ChatFormat.render_assistant`."""
        return self._ids([*_assistant_body(message), Piece(Source.TEMPLATE, "<|im_end|>")])

    @classmethod
    def transcript(cls, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """See `ChatFormat.transcript`."""
        return "".join(piece.text for piece in cls._conversation(messages, tools))

    def parse(self, ids: Sequence[int] | Int32[np.ndarray, " T"]) -> ParsedTurn:
        """See `ChatFormat.parse`. One broken call, or a tag without its partner, and no call of the turn runs."""
        blocks = list(self._cut(list(itertools.takewhile(lambda token: token not in self.stop_ids, map(int, ids)))))
        errors = [block.error for block in blocks if block.error]
        calls = []
        for number, block in enumerate((block for block in blocks if block.tag == "tool_call"), start=1):
            try:
                calls.append(ParsedCall(*read_call(block.text), block.span))
            except ValueError as error:
                errors.append(f"tool call {number}: {error}")
        return ParsedTurn(
            text=_text(blocks),
            reasoning=_reasoning(blocks),
            tool_calls=() if errors else tuple(calls),
            error="; ".join(errors) or None,
        )

    def _cut(self, ids: list[int]) -> Iterator["_Block"]:
        """Cuts a turn into plain text, think blocks and tool calls. Tags count only where no block is open."""
        start = 0
        while start < len(ids):
            if ids[start] in self._blocks:
                tag, closer = self._blocks[ids[start]]
                stop = _find(ids, {closer}, start)
                error = None if stop < len(ids) else f"<{tag}> is never closed"
                yield _Block(tag, self.tokenizer.decode(ids[start + 1 : stop]), (start, min(stop + 1, len(ids))), error)
                start = stop + 1
            else:
                stop = _find(ids, self._blocks, start)
                strays = [tag for tag, closer in self._blocks.values() if closer in ids[start:stop]]
                error = f"</{strays[0]}> closes nothing" if strays else None
                yield _Block("text", self.tokenizer.decode(ids[start:stop]), (start, stop), error)
                start = stop

    @classmethod
    def _conversation(cls, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[Piece]:
        system = messages[0] if messages and messages[0].role == "system" else None
        if not tools:
            return _turns(messages)
        return itertools.chain(cls._system(system, tools), _turns(messages[1:] if system else messages))

    @classmethod
    def _system(cls, message: Message | None, tools: Sequence[ToolSpec]) -> Iterator[Piece]:
        yield Piece(Source.TEMPLATE, "<|im_start|>system\n")
        if message:
            yield Piece(Source.ENVIRONMENT, message_text(message.content))
            yield Piece(Source.TEMPLATE, "\n\n")
        yield Piece(Source.TEMPLATE, cls.before_tools)
        yield Piece(Source.ENVIRONMENT, "\n".join(map(_schema, tools)))
        yield Piece(Source.TEMPLATE, cls.after_tools + "<|im_end|>\n")

    def _ids(self, pieces: Iterable[Piece]) -> Int32[np.ndarray, " T"]:
        return np.concatenate([segment.ids for segment in encode_pieces(pieces, self.tokenizer)])


class ChatMLHermesShort(ChatMLHermes):
    """`ChatMLHermes` whose system message holds the tools' schemas and no instructions, for very small models."""

    name = "chatml_hermes_short"
    before_tools = ""
    after_tools = ""


def _schema(tool: ToolSpec) -> str:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _turns(messages: Iterable[Message]) -> Iterator[Piece]:
    for is_tool, run in itertools.groupby(messages, key=lambda message: message.role == "tool"):
        if is_tool:
            yield from _tool_turn(run)
        else:
            for message in run:
                yield from _turn(message)


def _turn(message: Message) -> Iterator[Piece]:
    yield Piece(Source.TEMPLATE, f"<|im_start|>{message.role}\n")
    if message.role == "assistant":
        yield from _assistant_body(message)
    else:
        yield Piece(Source.ENVIRONMENT, message_text(message.content))
    yield Piece(Source.TEMPLATE, "<|im_end|>\n")


def _tool_turn(messages: Iterable[Message]) -> Iterator[Piece]:
    """All answers to one turn's calls share a user turn."""
    yield Piece(Source.TEMPLATE, "<|im_start|>user")
    for message in messages:
        yield Piece(Source.TEMPLATE, "\n<tool_response>\n")
        yield Piece(Source.ENVIRONMENT, message_text(message.content))
        yield Piece(Source.TEMPLATE, "\n</tool_response>")
    yield Piece(Source.TEMPLATE, "<|im_end|>\n")


def _assistant_body(message: Message) -> Iterator[Piece]:
    if message.reasoning is not None:
        yield Piece(Source.TEMPLATE, "<think>\n")
        yield Piece(Source.ENVIRONMENT, message.reasoning)
        yield Piece(Source.TEMPLATE, "\n</think>\n\n")
    content = message_text(message.content)
    yield Piece(Source.ENVIRONMENT, content)
    for number, call in enumerate(message.tool_calls):
        yield Piece(Source.TEMPLATE, "\n<tool_call>\n" if content or number else "<tool_call>\n")
        name = json.dumps(call.name, ensure_ascii=False)
        yield Piece(Source.ENVIRONMENT, f'{{"name": {name}, "arguments": {call.arguments}}}')
        yield Piece(Source.TEMPLATE, "\n</tool_call>")


class _Block(NamedTuple):
    """A "text", "think" or "tool_call" stretch of a turn: its text without tags, tokens with them, and fault."""

    tag: str
    text: str
    span: tuple[int, int]
    error: str | None


def _find(ids: list[int], wanted: Iterable[int], start: int) -> int:
    """Where the next wanted id is; the end if there is none."""
    return next((at for at in range(start, len(ids)) if ids[at] in wanted), len(ids))


def _text(blocks: Sequence[_Block]) -> str:
    """The plain text, less the newlines that the format puts after a think block and before a call."""
    texts = []
    for place, block in enumerate(blocks):
        if block.tag == "text":
            text = block.text
            if place and blocks[place - 1].tag == "think":
                text = text.removeprefix("\n\n")
            if place + 1 < len(blocks) and blocks[place + 1].tag == "tool_call":
                text = text.removesuffix("\n")
            texts.append(text)
    return "".join(texts)


def _reasoning(blocks: Sequence[_Block]) -> str | None:
    thoughts = [block.text.removeprefix("\n").removesuffix("\n") for block in blocks if block.tag == "think"]
    return "\n".join(thoughts) if thoughts else None

"""Chat formats by name: a name and a tokenizer in, a chat format out."""

import difflib
from collections.abc import Mapping

from agentjax.chat.chatml import ChatMLHermes, ChatMLHermesShort
from agentjax.chat.format import ChatFormat
from agentjax.chat.tokenizer import Tokenizer

CHAT_FORMATS: Mapping[str, type[ChatMLHermes]] = {cls.name: cls for cls in (ChatMLHermes, ChatMLHermesShort)}


def get_chat_format(name: str, tokenizer: Tokenizer) -> ChatFormat:
    """Makes the chat format of that name.

    Raises:
        ValueError: If there is no such format, or the tokenizer lacks one of its special tokens.
    """
    if name not in CHAT_FORMATS:
        near = difflib.get_close_matches(name, CHAT_FORMATS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(sorted(CHAT_FORMATS))}."
        raise ValueError(f"Unknown chat.format {name!r}.{hint}")
    return CHAT_FORMATS[name](tokenizer)

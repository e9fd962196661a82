"""Chat: messages in, token ids out, and back: tokenizer, chat formats, parsing of tool calls."""

from agentjax.chat.chatml import ChatMLHermes, ChatMLHermesShort
from agentjax.chat.format import ChatFormat, ParsedCall, ParsedTurn
from agentjax.chat.registry import CHAT_FORMATS, get_chat_format
from agentjax.chat.tokenizer import DIGIT_PAIRS, SPECIAL_TOKENS, Tokenizer, train_tokenizer

__all__ = [
    "CHAT_FORMATS",
    "DIGIT_PAIRS",
    "SPECIAL_TOKENS",
    "ChatFormat",
    "ChatMLHermes",
    "ChatMLHermesShort",
    "ParsedCall",
    "ParsedTurn",
    "Tokenizer",
    "get_chat_format",
    "train_tokenizer",
]

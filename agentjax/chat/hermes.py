"""Hermes tool calls: the text between call tags in, tool name and raw arguments out."""

import json
import re
from typing import NoReturn

_SPACE = re.compile(r"[ \t\n\r]*")


def read_call(text: str) -> tuple[str, str]:
    """Reads `{"name": ..., "arguments": {...}}`.

    Args:
        text: What stood between the tags.

    Returns:
        The tool's name, and the text of the arguments exactly as written.

    Raises:
        ValueError: If the text is not such an object; the message tells the policy what is wrong.
    """
    try:
        call = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error})") from error
    if not isinstance(call, dict):
        raise ValueError('not a JSON object with "name" and "arguments"')
    if not isinstance(call.get("name"), str) or not call["name"]:
        raise ValueError('"name" must be the name of a tool')
    if not isinstance(call.get("arguments"), dict):
        raise ValueError('"arguments" must be a JSON object')
    return call["name"], _raw_members(text)["arguments"]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _raw_members(text: str) -> dict[str, str]:
    """Raw text of each value of the JSON object `text`, which has members and is known to be valid."""
    decoder = json.JSONDecoder()
    members: dict[str, str] = {}
    at = text.index("{")
    while text[at] != "}":
        key, at = decoder.raw_decode(text, _skip_space(text, at + 1))
        start = _skip_space(text, text.index(":", at) + 1)
        _, stop = decoder.raw_decode(text, start)
        members[key] = text[start:stop]
        at = _skip_space(text, stop)
    return members


def _skip_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at

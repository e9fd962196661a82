"""Command-line overrides: texts like "rollout.slots=128" in, typed values in a nested dict out."""

import ast
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentjax.config.convert import describe_type, field_types, known_keys, unknown_key

_PREFIXES = ("--config.", "config.")
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_WORDS = {"true": True, "false": False, "none": None, "null": None}  # where any type fits, as under env.args


def apply_overrides(cls: type, values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Put overrides into nested plain values, each parsed by the type of its field.

    Args:
        cls: The dataclass the values are for; its annotations give the types.
        values: Nested plain values; left as they are.
        overrides: Texts "a.b=c", with or without a leading "--config.". Later ones win.

    Returns:
        A copy of the values with the overrides in it.

    Raises:
        ValueError: If a key is unknown, or a text is no value of its type.
    """
    copy = _copy(values)
    for override in overrides:
        path, text = _split(override)
        hint = _type_at(cls, path)
        section = copy
        *sections, leaf = path.split(".")
        for name in sections:
            section = section.setdefault(name, {})
        section[leaf] = parse(text, hint, path)
    return copy


def _copy(values: Any) -> Any:
    return {key: _copy(value) for key, value in values.items()} if isinstance(values, Mapping) else values


def _split(override: str) -> tuple[str, str]:
    bare = next((override.removeprefix(p) for p in _PREFIXES if override.startswith(p)), override)
    path, equals, text = bare.partition("=")
    if not equals or not path:
        raise ValueError(f"An override looks like --config.rollout.slots=128, got {override!r}.")
    return path, text


def _type_at(cls: type, path: str) -> Any:
    hint: Any = cls
    for name in path.split("."):
        if dataclasses.is_dataclass(hint):
            fields = field_types(hint)
            if name not in fields:
                raise ValueError(unknown_key(path, known_keys(cls)))
            hint = fields[name]
        elif (args := typing.get_args(hint)) and _is_mapping(hint):
            hint = args[1]
        elif hint is not Any:
            raise ValueError(unknown_key(path, known_keys(cls)))
    if dataclasses.is_dataclass(hint):
        keys = ", ".join(f"{path}.{name}" for name in field_types(hint))
        raise ValueError(f"{path} is a section; set one of its keys: {keys}.")
    return hint


def parse(text: str, hint: Any, path: str) -> Any:
    """Read a value of an annotated type from the command line.

    Args:
        text: What was typed. None is "none"; a tuple is "1,2" or "(1, 2)"; a mapping is written as in Python.
        hint: The annotation of the field.
        path: The key, for messages.

    Raises:
        ValueError: If the text is no value of the type.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if type(None) in args and text.lower() in ("none", "null"):
            return None
        return _first_that_fits(text, [a for a in args if a is not type(None)], hint, path)
    if origin is Literal or hint is str:
        return text
    if origin is tuple:
        return _parse_tuple(text, args, hint, path)
    if hint is bool and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if hint in (int, float):
        return _parse_number(text, hint, path)
    if hint is Any:
        return _WORDS[text.lower()] if text.lower() in _WORDS else _literal(text, default=text)
    value = _literal(text, default=None)
    if _is_mapping(hint) and isinstance(value, dict):
        return value
    raise _misread(text, hint, path)


def _first_that_fits(text: str, options: list, hint: Any, path: str) -> Any:
    for option in options:
        try:
            return parse(text, option, path)
        except ValueError:  # the next option may fit
            continue
    raise _misread(text, hint, path)


def _parse_tuple(text: str, args: tuple, hint: Any, path: str) -> tuple:
    bare = text.strip()
    if bare[:1] in ("(", "["):
        bare = bare[1:-1]
    items = [item.strip().strip("'\"") for item in bare.split(",") if item.strip()]
    types_ = [args[0]] * len(items) if args[1:] == (...,) else args
    if len(types_) != len(items):
        raise _misread(text, hint, path)
    return tuple(parse(item, t, path) for item, t in zip(items, types_, strict=True))


def _parse_number(text: str, hint: type, path: str) -> int | float:
    try:
        number = float(text) if hint is float or "e" in text.lower() else int(text)
        whole = hint is float or number == int(number)
    except (ValueError, OverflowError) as error:  # no number, or an infinite one
        raise _misread(text, hint, path) from error
    if not whole:
        raise _misread(text, hint, path)
    return hint(number)


def _literal(text: str, default: Any) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):  # not a Python literal: plain text
        return default


def _is_mapping(hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _misread(text: str, hint: Any, path: str) -> ValueError:
    return ValueError(f"{path} must be {'a mapping' if _is_mapping(hint) else describe_type(hint)}, got {text!r}.")

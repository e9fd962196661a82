"""Nested plain values in, frozen dataclasses out, and back. What does not fit is named with its full path."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """Make a dataclass, and those nested in it, from plain values.

    Args:
        cls: A dataclass; its annotations say what fits.
        values: A value for each field that is not to have its default.
        path: Where the values stand in the config, for messages.

    Returns:
        The dataclass, all its own checks passed.

    Raises:
        ValueError: If a key is unknown or a check fails.
        TypeError: If a value has the wrong type.
    """
    hints = field_types(cls)
    for key in values:
        if key not in hints:
            raise ValueError(unknown_key(join(path, key), known_keys(cls, path)))
    fields = {key: convert(value, hints[key], join(path, key)) for key, value in values.items()}
    try:
        return cls(**fields)
    except ValueError as error:
        raise ValueError(str(error) if not path or path in str(error) else f"In {path}: {error}") from error


def convert(value: Any, hint: Any, path: str) -> Any:
    """Bring one value to an annotated type: int to float, list to tuple, mapping to dataclass; nothing else changes.

    Raises:
        TypeError: If the value does not fit.
        ValueError: If it fits but is not allowed.
    """
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong_type(path, value, "a section")
        return build(typing.cast(type, hint), value, path)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_optional(value, hint, args, path)
    if origin is Literal:
        if value not in args:
            raise ValueError(f"{path} must be {describe_type(hint)}, got {value!r}.{did_you_mean(str(value), args)}")
        return value
    if origin is tuple:
        return _convert_tuple(value, hint, args, path)
    if hint is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _convert_mapping(value, args, path)
    return _convert_scalar(value, hint, path)


def _convert_optional(value: Any, hint: Any, args: tuple, path: str) -> Any:
    if value is None and type(None) in args:
        return None
    options = [a for a in args if a is not type(None)]
    if len(options) == 1:
        return convert(value, options[0], path)
    for option in options:
        try:
            return convert(value, option, path)
        except TypeError:  # the next option may fit
            continue
    raise _wrong_type(path, value, describe_type(hint))


def _convert_tuple(value: Any, hint: Any, args: tuple, path: str) -> tuple:
    if not isinstance(value, list | tuple):
        raise _wrong_type(path, value, describe_type(hint))
    items = [args[0]] * len(value) if args[1:] == (...,) else args
    if len(items) != len(value):
        raise _wrong_type(path, value, describe_type(hint))
    return tuple(convert(v, item, f"{path}[{i}]") for i, (v, item) in enumerate(zip(value, items, strict=True)))


def _convert_mapping(value: Any, args: tuple, path: str) -> dict:
    if not isinstance(value, Mapping):
        raise _wrong_type(path, value, "a mapping")
    item = args[1] if args else Any
    return {str(key): convert(v, item, join(path, str(key))) for key, v in value.items()}


def _convert_scalar(value: Any, hint: Any, path: str) -> Any:
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _wrong_type(path, value, describe_type(hint))
    return value


def plain(config: Any) -> Any:
    """The JSON-like values of a dataclass: the inverse of `build`."""
    if dataclasses.is_dataclass(config):
        return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {key: plain(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [plain(value) for value in config]
    return config


def field_types(cls: Any) -> dict[str, Any]:
    """The annotated type of each field of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def known_keys(cls: Any, path: str = "") -> list[str]:
    """Every key under a dataclass, sections included, with its full path."""
    keys = []
    for name, hint in field_types(cls).items():
        keys.append(join(path, name))
        if dataclasses.is_dataclass(hint):
            keys += known_keys(hint, join(path, name))
    return keys


def unknown_key(path: str, known: Iterable[str]) -> str:
    """The message for a key that does not exist: the closest by its last part first, then by its whole path."""
    known = list(known)
    leaf = path.rsplit(".", 1)[-1]
    leaves = [key.rsplit(".", 1)[-1] for key in known]
    close = difflib.get_close_matches(leaf, leaves, n=1)
    same_leaf = [key for key, name in zip(known, leaves, strict=True) if close and name == close[0]]
    best = difflib.get_close_matches(path, same_leaf or known, n=1, cutoff=0.0 if same_leaf else 0.6)
    return f"Unknown config key {path!r}." + (f" Did you mean {best[0]!r}?" if best else "")


def did_you_mean(name: str, options: Iterable[Any]) -> str:
    """ " Did you mean 'x'?" for the option closest to a mistyped name; empty if none is close."""
    close = difflib.get_close_matches(name, [str(o) for o in options], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def describe_type(hint: Any) -> str:
    """A type in words, for messages."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("None" if a is type(None) else describe_type(a) for a in args)
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in args)
    if origin is tuple:
        inner = describe_type(args[0]) + ", ..." if args[1:] == (...,) else ", ".join(describe_type(a) for a in args)
        return f"a tuple ({inner})"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Any: "anything"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def join(path: str, key: str) -> str:
    """The path of a key within a section."""
    return f"{path}.{key}" if path else key


def _wrong_type(path: str, value: Any, expected: str) -> TypeError:
    return TypeError(f"{path} must be {expected}, got {value!r} ({type(value).__name__}).")

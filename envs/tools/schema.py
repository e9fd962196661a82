"""Tool schemas: a typed function with a Google-style docstring in, a `ToolSpec` with a JSON schema out."""

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

from jsonschema import Draft202012Validator, validators

from agentjax.envs.api import ToolSpec

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
_SECTION = re.compile(r"(Args|Arguments|Returns|Raises|Yields|Example|Examples|Note|Notes|Source):")
_ARGUMENT = re.compile(r"\*{0,2}(\w+)(?: \([^)]*\))?: *(.*)")


def tool_spec(function: Callable[..., Any], *, timeout_s: float = 30.0) -> ToolSpec:
    """Describes a function to the policy.

    The name is the function's, the description is the docstring up to its first section, and each parameter takes its
    type from the annotation and its description from "Args:". A parameter without a default is required.

    Args:
        function: Sync or async; every parameter annotated with JSON types: str, int, float, bool, None, list, dict,
            Literal and unions of these.
        timeout_s: Wall seconds one call may take.

    Raises:
        ValueError: If there is no docstring, or it describes an argument that does not exist.
        TypeError: If a parameter has no annotation, or one that JSON cannot hold.
    """
    plain = function.__func__ if inspect.ismethod(function) else function
    name, description, schema = _described(plain, plain is not function)
    return ToolSpec(name, description, schema, timeout_s)


@functools.lru_cache(maxsize=256)
def _described(function: Callable[..., Any], is_method: bool) -> tuple[str, str, Mapping[str, Any]]:
    """Name, description and schema; once per function, since every episode asks for them."""
    if is_method:
        function = function.__get__(object())
    name = function.__name__
    description, arguments = parse_docstring(inspect.getdoc(function) or "")
    if not description:
        raise ValueError(f"tool {name!r} needs a docstring: it is what the policy reads about it.")
    schema = object_schema(function, owner=f"tool {name!r}")
    for argument, text in arguments.items():
        if argument not in schema["properties"]:
            raise ValueError(f"tool {name!r}: its docstring describes {argument!r}, which is not a parameter.")
        schema["properties"][argument]["description"] = text
    return name, description, schema


def object_schema(function: Callable[..., Any], *, owner: str) -> dict[str, Any]:
    """JSON schema of the keyword arguments of a function or of a dataclass.

    Args:
        function: What will be called.
        owner: Its name in error messages.

    Raises:
        TypeError: If a parameter has no annotation, one that JSON cannot hold, or cannot be passed by name.
    """
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        where = f"{owner}, parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{where}: calls pass arguments by name, so *args, **kwargs and '/' cannot be used.")
        if parameter.name not in hints:
            raise TypeError(f"{where}: needs a type annotation.")
        properties[parameter.name] = type_schema(hints[parameter.name], where)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def type_schema(hint: Any, where: str) -> dict[str, Any]:
    """JSON schema of one annotation.

    Raises:
        TypeError: If JSON cannot hold the type; the message begins with `where`.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [type_schema(argument, where) for argument in arguments]}
    if list in (hint, origin):
        return {"type": "array"} | ({"items": type_schema(arguments[0], where)} if arguments else {})
    if dict in (hint, origin) and (not arguments or arguments[0] is str):
        return {"type": "object"} | ({"additionalProperties": type_schema(arguments[1], where)} if arguments else {})
    raise TypeError(
        f"{where}: JSON cannot hold {hint!r}; use str, int, float, bool, None, list, dict[str, ...], Literal, unions."
    )


def parse_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Splits a Google-style docstring into its description and the text of each argument, line breaks joined."""
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in inspect.cleandoc(docstring).splitlines():
        if heading := _SECTION.fullmatch(line.rstrip()):
            current = heading[1]
            sections[current] = []
        else:
            sections[current].append(line)
    paragraphs = "\n".join(sections[""]).strip().split("\n\n")
    description = "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return description, _arguments(sections.get("Args") or sections.get("Arguments") or [])


def _arguments(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name, margin = "", None
    for line in filter(str.strip, lines):
        indent = len(line) - len(line.lstrip())
        margin = indent if margin is None else margin
        match = _ARGUMENT.fullmatch(line.strip())
        if match and indent <= margin:
            name = match[1]
            found[name] = match[2].strip()
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _is_integer(_checker: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# JSON schema calls 3.0 an integer; a Python function annotated `int` would be handed a float.
_Validator = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)


def schema_errors(schema: Mapping[str, Any], value: Any) -> list[tuple[str, str]]:
    """What is wrong with a value: (path such as "cells.0", message) pairs in a stable order; empty if it fits."""
    errors = sorted(_Validator(schema).iter_errors(value), key=lambda error: list(map(str, error.absolute_path)))
    return [(".".join(map(str, error.absolute_path)), error.message) for error in errors]

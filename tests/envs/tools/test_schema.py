"""Tool schemas against schemas written by hand, and what cannot be described."""

import dataclasses
from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator

from agentjax.envs.tools import object_schema, tool_spec
from agentjax.envs.tools.schema import schema_errors


async def search(
    query: str, limit: int = 5, *, order: Literal["new", "old"] = "new", tags: list[str] | None = None
) -> str:
    """Searches the library
    for pages.

    Returns the best first.

    Args:
        query: What to look for; a colon: is
            fine here.
        limit (int): Pages, at most.
        order: Which come first.

    Returns:
        Titles.

    Raises:
        ValueError: If limit < 1.
    """
    return ""


def test_matches_the_schema_written_by_hand():
    spec = tool_spec(search, timeout_s=3.0)
    assert (spec.name, spec.timeout_s) == ("search", 3.0)
    assert spec.description == "Searches the library for pages.\nReturns the best first."
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for; a colon: is fine here."},
            "limit": {"type": "integer", "description": "Pages, at most."},
            "order": {"enum": ["new", "old"], "description": "Which come first."},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    Draft202012Validator.check_schema(spec.parameters)


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (list, {"type": "array"}),
        (list[list[int]], {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        (dict, {"type": "object"}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    ],
)
def test_types(hint, schema):
    def tool(x):
        """A tool."""

    tool.__annotations__["x"] = hint
    assert tool_spec(tool).parameters["properties"]["x"] == schema


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [0, -5, 10**30], [True, 3.0, "3", None]),
        ({"type": "number"}, [0, 1.5], [False, "1.5"]),
        ({"enum": ["new"]}, ["new"], ["old", None]),
    ],
)
def test_values_are_held_to_what_python_means_by_the_type(schema, good, bad):
    assert not any(schema_errors(schema, value) for value in good)
    assert all(schema_errors(schema, value) for value in bad)


def test_bound_methods_lose_self():
    class Shop:
        def price(self, item: str) -> float:
            """Price of an item."""
            return 1.0

    assert list(tool_spec(Shop().price).parameters["properties"]) == ["item"]


def test_dataclasses_have_schemas_too():
    @dataclasses.dataclass
    class Args:
        size: int
        wet: bool = False

    schema = object_schema(Args, owner="env")
    assert schema["required"] == ["size"]
    assert schema["properties"] == {"size": {"type": "integer"}, "wet": {"type": "boolean"}}


def undocumented(x: int): ...


def untyped(x):
    """A tool."""


def untypable(x: set[int]):
    """A tool."""


def starred(*x: int):
    """A tool."""


def misdocumented(x: int):
    """A tool.

    Args:
        y: Not there.
    """


@pytest.mark.parametrize(
    ("tool", "error", "message"),
    [
        (undocumented, ValueError, "undocumented.*docstring"),
        (untyped, TypeError, "'untyped', parameter 'x'.*annotation"),
        (untypable, TypeError, "'untypable', parameter 'x'.*set"),
        (starred, TypeError, "'starred', parameter 'x'.*by name"),
        (misdocumented, ValueError, "'misdocumented'.*'y'"),
    ],
)
def test_what_cannot_be_described_says_why(tool, error, message):
    with pytest.raises(error, match=message):
        tool_spec(tool)

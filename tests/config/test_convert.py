"""Conversion between plain values and dataclasses."""

import dataclasses
from typing import Literal

import pytest

from agentjax.config.convert import build, plain
from agentjax.config.overrides import parse


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    either: int | str | None = None

    def __post_init__(self):
        if sum(self.sizes) > 9:
            raise ValueError("sizes must sum to at most 9.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    rate: float = 0.0
    mode: Literal["a", "b"] = "a"
    inner: Inner = dataclasses.field(default_factory=Inner)


def test_plain_values_build_what_they_came_from():
    outer = Outer(rate=2.0, mode="b", inner=Inner(sizes=(1, 2), pair=(3, "x"), either="y"))
    assert build(Outer, plain(outer)) == outer


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": "fast"}, r"rate must be a number, got 'fast' \(str\)"),
        ({"rate": True}, "rate must be a number, got True"),
        ({"inner": 3}, "inner must be a section, got 3"),
        ({"inner": {"sizes": 3}}, r"inner.sizes must be a tuple \(a whole number, ...\), got 3"),
        ({"inner": {"sizes": [1, "x"]}}, r"inner.sizes\[1\] must be a whole number, got 'x'"),
        ({"inner": {"pair": [1]}}, r"inner.pair must be a tuple \(a whole number, text\)"),
        ({"inner": {"either": 1.5}}, "inner.either must be a whole number or text or None, got 1.5"),
    ],
)
def test_a_wrong_type_is_named_with_key_value_and_what_is_expected(values, message):
    with pytest.raises(TypeError, match=message):
        build(Outer, values)


def test_a_check_of_a_nested_section_says_where_it_stands():
    with pytest.raises(ValueError, match="In inner: sizes must sum to at most 9."):
        build(Outer, {"inner": {"sizes": [5, 5]}})


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("1,2,3", tuple[int, ...], (1, 2, 3)),
        ("(1, 2)", tuple[int, ...], (1, 2)),
        ("(1,)", tuple[int, ...], (1,)),
        ("()", tuple[int, ...], ()),
        ("('a', 'b')", tuple[str, ...], ("a", "b")),
        ("3,x", tuple[int, str], (3, "x")),
        ("none", tuple[int, ...] | None, None),
        ("7", int | str | None, 7),
        ("seven", int | str | None, "seven"),
    ],
)
def test_tuples_and_unions_are_read_from_text(text, hint, value):
    assert parse(text, hint, "key") == value


def test_a_tuple_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match=r"key must be a tuple \(a whole number, text\), got '3'"):
        parse("3", tuple[int, str], "key")

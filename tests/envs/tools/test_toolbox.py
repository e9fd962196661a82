"""Tool calls: whatever the policy writes and the tool does, there is a result."""

import asyncio
import json
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentjax.envs.api import EnvError, EnvFault, ToolCall
from agentjax.envs.tools import Tool, Toolbox, ToolError


def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


async def add_later(a: int, b: int = 1) -> int:
    """Adds, later."""
    await asyncio.sleep(0)
    return a + b


def call(tools, name, arguments, **options):
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return asyncio.run(Toolbox(tools, **options).call(ToolCall("id", name, arguments)))


@pytest.mark.parametrize("tool", [add, add_later])
def test_runs_sync_and_async_functions(tool):
    result = call([tool], tool.__name__, {"a": 2, "b": 40})
    assert (result.ok, result.content, result.call.id) == (True, "42", "id")
    assert result.seconds >= 0


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ad", {}, "no tool 'ad'. Did you mean 'add'? Tools: add, add_later."),
        ("zzz", {}, "no tool 'zzz'. Tools: add, add_later."),
        ("z" * 9999, {}, "no tool 'zzz"),
        ("add", '{"a": 1', "not JSON"),
        ("add", "", "not JSON"),
        ("add", '{"a": NaN}', "NaN is not JSON"),
        ("add", "[" * 100_000, "not JSON"),
        ("add", "9" * 10_000, "not JSON"),
        ("add", [1], "not of type 'object'"),
        ("add", {}, "'a' is a required property"),
        ("add", {"a": "2"}, "add, a: '2' is not of type 'integer'"),
        ("add", {"a": True}, "add, a: True is not of type 'integer'"),
        ("add", {"a": 1, "c": 2}, "'c' was unexpected"),
    ],
)
def test_mistakes_of_the_policy_are_answered(name, arguments, message):
    result = call([add, add_later], name, arguments)
    assert not result.ok
    assert message in result.content
    assert len(result.content) < 400, "a mistake must not flood the context"


def fails_with(error):
    def broken() -> str:
        """Fails."""
        raise error

    async def broken_later() -> str:
        """Fails, later."""
        raise error

    return broken, broken_later


@pytest.mark.parametrize(
    ("error", "content"),
    [
        (KeyError("x"), "error: KeyError: 'x'"),
        (ToolError("no such page"), "no such page"),
        (TimeoutError("remote"), "error: TimeoutError: remote"),
        (StopIteration(), "StopIteration"),
        (SystemExit(3), "SystemExit"),
        (RecursionError(), "RecursionError"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_failures_of_the_tool_are_answered(error, content):
    for tool in fails_with(error):
        result = call([tool], tool.__name__, {})
        assert not result.ok
        assert content.lower() in result.content.lower()


def test_a_fault_of_the_infrastructure_is_not_the_policys():
    fault = EnvFault(EnvError("sandbox", "gone", retryable=True, mask=True))
    for tool in fails_with(fault):
        with pytest.raises(EnvFault, match="gone"):
            call([tool], tool.__name__, {})


def test_hanging_tools_are_given_up():
    released = threading.Event()

    def hang() -> None:
        """Hangs."""
        released.wait(20)

    async def hang_later() -> None:
        """Hangs, and refuses to be cancelled."""
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)

    began = time.perf_counter()
    for tool in (hang, hang_later):
        result = call([Tool.of(tool, timeout_s=0.05)], tool.__name__, {})
        assert not result.ok
        assert result.content == f"error: {tool.__name__} took longer than 0.05 s"
    released.set()
    assert time.perf_counter() - began < 5


def test_sync_tools_do_not_hold_up_each_other():
    barrier = threading.Barrier(64, timeout=20)

    def meet() -> None:
        """Waits until 64 calls are under way."""
        barrier.wait()

    async def all_at_once():
        toolbox = Toolbox([meet])
        return await asyncio.gather(*(toolbox.call(ToolCall(str(i), "meet", "{}")) for i in range(64)))

    assert all(result.ok for result in asyncio.run(all_at_once()))


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (None, ""),
        ({"a": [1, 2.5, None]}, '{"a": [1, 2.5, null]}'),
        (b"\xff\xfe ok", "\ufffd\ufffd ok"),
        ("\udcff bad", "? bad"),
        ({1, 2}, "{1, 2}"),
    ],
)
def test_any_value_becomes_text(value, content):
    def give() -> str:
        """Gives."""
        return value

    result = call([give], "give", {})
    assert (result.ok, result.content) == (True, content)


def test_a_cut_result_says_so():
    def flood() -> str:
        """Floods."""
        return "x" * 1000

    assert call([flood], "flood", {}, max_chars=10).content == "x" * 10 + "\n[cut: 990 more characters]"


def test_names_are_unique():
    with pytest.raises(ValueError, match="'add'"):
        Toolbox([add, add])


@settings(max_examples=50, deadline=None)
@given(name=st.text(), arguments=st.text() | st.from_regex(r'\{"a": .{0,10}\}'))
def test_no_call_raises(name, arguments):
    for tool in (name, "add"):
        call([add], tool, arguments).content.encode()

"""Tool calls: what the policy wrote in, a recorded result out, whatever it wrote and whatever the tool does."""

import asyncio
import dataclasses
import difflib
import inspect
import json
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from agentjax.envs.api import EnvFault, ToolCall, ToolResult, ToolSpec
from agentjax.envs.threads import in_thread
from agentjax.envs.tools.schema import schema_errors, tool_spec

_SHOWN_CHARS = 80  # how much of a policy's own text an error message repeats


class ToolError(Exception):
    """Raised by a tool to tell the policy what went wrong; the message is shown as it is."""


@dataclasses.dataclass(frozen=True)
class Tool:
    """A function and how it is presented.

    Attributes:
        spec: What the policy is told.
        function: Called with the arguments by name; sync or async.
    """

    spec: ToolSpec
    function: Callable[..., Any]

    @classmethod
    def of(cls, function: "Callable[..., Any] | Tool", *, timeout_s: float = 30.0) -> "Tool":
        """Makes a tool of a plain function; see `tool_spec`. A `Tool` passes through."""
        return function if isinstance(function, Tool) else cls(tool_spec(function, timeout_s=timeout_s), function)


class Toolbox:
    """The tools of an environment, by name.

    Args:
        tools: Plain functions or `Tool`s.
        max_chars: Longest result; the rest is cut and the result says so.

    Raises:
        ValueError: If two tools share a name.
    """

    def __init__(self, tools: Iterable[Callable[..., Any] | Tool], *, max_chars: int = 10_000):
        self._tools: dict[str, Tool] = {}
        self._max_chars = max_chars
        for tool in map(Tool.of, tools):
            if tool.spec.name in self._tools:
                raise ValueError(f"two tools are named {tool.spec.name!r}; rename one.")
            self._tools[tool.spec.name] = tool

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, in the given order."""
        return tuple(self._tools.values())

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the policy is told of them, in the given order."""
        return tuple(tool.spec for tool in self.tools)

    async def call(self, call: ToolCall) -> ToolResult:
        """Runs one call. Whatever the policy or the tool does wrong becomes a result with `ok` False.

        A sync function runs in a thread of its own; one that hangs is given up after `timeout_s` but keeps its thread,
        since Python cannot end it.

        Raises:
            EnvFault: If the tool says the infrastructure failed.
        """
        started = time.perf_counter()
        try:
            ok, content = True, await self._run(call)
        except ToolError as error:
            ok, content = False, str(error)
        return ToolResult(call, ok, self._cut(clean(content)), time.perf_counter() - started)

    async def _run(self, call: ToolCall) -> str:
        tool = self._find(call.name)
        arguments = parse_arguments(tool.spec, call.arguments)
        try:
            return as_text(await _in_time(tool.spec, _invoke(tool.function, arguments)))
        except (ToolError, EnvFault):
            raise
        except Exception as error:  # a tool is somebody's code: any failure of it is an observation
            raise ToolError(f"error: {type(error).__name__}: {error}") from error

    def _find(self, name: str) -> Tool:
        if name in self._tools:
            return self._tools[name]
        close = difflib.get_close_matches(name[:_SHOWN_CHARS], self._tools, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        known = ", ".join(self._tools) or "none"
        raise ToolError(f"error: there is no tool {_shown(name)!r}.{hint} Tools: {known}.")

    def _cut(self, text: str) -> str:
        extra = len(text) - self._max_chars
        return text if extra <= 0 else f"{text[: self._max_chars]}\n[cut: {extra} more characters]"


def parse_arguments(spec: ToolSpec, text: str) -> dict[str, Any]:
    """Arguments of a call, checked against the tool's schema.

    Raises:
        ToolError: If the text is not JSON, not an object, or does not fit the schema.
    """
    try:
        arguments = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(arguments, ensure_ascii=False).encode()  # an escape may have smuggled in what is not text
        problems = schema_errors(spec.parameters, arguments)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"error: the arguments of {spec.name} are not JSON: {_shown(str(error))}") from None
    for path, message in problems:
        raise ToolError(f"error: {spec.name}{f', {path}' if path else ''}: {_shown(message)}")
    return arguments


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


async def _in_time(spec: ToolSpec, work: Coroutine[Any, Any, Any]) -> Any:
    """Awaits a tool for at most its timeout, then drops it: cancelled but not waited for, as it may refuse to end."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # an abandoned failure is no news
    try:
        await asyncio.wait({task}, timeout=spec.timeout_s)
    finally:
        task.cancel()
    if not task.done():
        raise ToolError(f"error: {spec.name} took longer than {spec.timeout_s:g} s")
    if task.cancelled():
        raise ToolError(f"error: {spec.name} was cancelled")
    return task.result()


async def _invoke(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Awaits an async function, or calls a sync one in a thread of its own."""
    try:
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        return await in_thread(lambda: _call(function, arguments), name="tool")
    except SystemExit as error:  # asyncio would carry it out of the event loop and end the run
        raise RuntimeError("the tool raised SystemExit") from error


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except BaseException as error:  # nobody above a thread handles the rest
        raise _as_exception(error) from None


def _as_exception(error: BaseException) -> Exception:
    # A future refuses StopIteration, and would carry SystemExit out of the event loop.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the tool raised {type(error).__name__}")


def as_text(value: Any) -> str:
    """What a policy sees of a tool's return value: text as it is, None as nothing, other values as JSON if they can."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if value is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def clean(text: str) -> str:
    """The text with every character that UTF-8 cannot carry replaced by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."

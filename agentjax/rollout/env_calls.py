"""Calls into an environment: a method and a deadline in, its answer or a `Fault` out."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from agentjax.envs.api import Action, Budget, Env, EnvError, EnvFault, Reset, Score, Step, Task
from agentjax.envs.sandbox import SandboxError
from agentjax.envs.threads import in_thread
from agentjax.trajectory import StopReason

_STOP_OF_KIND = {"timeout": StopReason.TIMEOUT, "sandbox": StopReason.SANDBOX_LOST}


class Fault(Exception):
    """The infrastructure failed, not the policy: the episode has no reward.

    Attributes:
        stop: Which fault.
        detail: What happened, for people.
        retryable: Whether playing the task again may work.
    """

    def __init__(self, stop: StopReason, detail: str, *, retryable: bool = True):
        super().__init__(f"{stop}: {detail}")
        self.stop = stop
        self.detail = detail
        self.retryable = retryable


def fault_of(error: EnvError) -> Fault:
    """The fault an environment reports."""
    stop = _STOP_OF_KIND.get(error.kind, StopReason.ENV_CRASH)
    return Fault(stop, f"{error.kind}: {error.detail}", retryable=error.retryable)


@contextlib.contextmanager
def env_to_blame(what: str) -> Iterator[None]:
    """Turn an error over something the environment gave into a `Fault`: it gave values of a wrong type or shape."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        detail = f"the environment gave unusable {what}: {type(error).__name__}: {error}"
        raise Fault(StopReason.ENV_CRASH, detail, retryable=False) from error


class EnvCalls:
    """One environment, every call of which ends: with its answer, or with a `Fault`.

    Attributes:
        seconds: Wall time the environment has used; `budget.episode_s` bounds it for reset and steps.
    """

    def __init__(self, make_env: Callable[[], Env], budget: Budget):
        """Prepare; the environment is made at `reset`, since that may fail as well.

        Args:
            make_env: Gives one instance, for one episode.
            budget: Its deadlines.
        """
        self._make_env = make_env
        self._env: Env | None = None
        self._budget = budget
        self.seconds = 0.0

    async def reset(self, task: Task) -> Reset:
        """Make the environment and begin the episode."""
        try:
            self._env = self._make_env()
        except (Exception, SystemExit) as error:  # third-party code may raise anything
            raise _crash("making it", error) from error
        return await self._within_episode("reset", Reset, task)

    async def step(self, action: Action) -> Step:
        """Answer one sampled turn."""
        return await self._within_episode("step", Step, action)

    async def score(self) -> Score | None:
        """The late reward, None if the steps gave it."""
        return await self._call("score", "budget.score_s", self._budget.score_s, (Score, type(None)))

    async def close(self) -> str | None:
        """Free the environment, whoever cancels meanwhile. Never a fault; says what went wrong, if something did."""
        if self._env is None:
            return None
        try:
            await _to_the_end(self._call("close", "budget.step_s", self._budget.step_s, object))
        except Fault as fault:
            return fault.detail
        return None

    async def _within_episode(self, method: str, answer: type, *args: Any) -> Any:
        left = self._budget.episode_s - self.seconds
        if left < self._budget.step_s:
            return await self._call(method, "the rest of budget.episode_s", max(left, 0.0), answer, *args)
        return await self._call(method, "budget.step_s", self._budget.step_s, answer, *args)

    async def _call(self, method: str, limit: str, limit_s: float, answer: type | tuple[type, ...], *args: Any) -> Any:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(limit_s) as deadline:
                result = await self._invoke(method, *args)
        except TimeoutError as error:
            if not deadline.expired():
                raise _crash(method, error) from error
            raise Fault(StopReason.TIMEOUT, f"{method} took longer than {limit} ({limit_s:.3g} s)") from None
        except EnvFault as error:
            raise fault_of(error.error) from error
        except SandboxError as error:
            raise Fault(StopReason.SANDBOX_LOST, f"{method} raised {type(error).__name__}: {error}") from error
        except asyncio.CancelledError as error:
            if _was_cancelled():
                raise
            raise _crash(method, error) from error
        except (Exception, SystemExit) as error:  # third-party code may raise anything
            raise _crash(method, error) from error
        finally:
            self.seconds += time.perf_counter() - began
        if not isinstance(result, answer):
            detail = f"{method} returned a {type(result).__name__}, see agentjax.envs.api.Env.{method}"
            raise Fault(StopReason.ENV_CRASH, detail, retryable=False)
        return result

    def _invoke(self, method: str, *args: Any) -> Awaitable[Any]:
        function = getattr(self._env, method)
        if self._env is None or not self._env.spec.sync:
            return function(*args)
        return in_thread(lambda: _finish(function(*args)), name="environment")


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await something that must not be left half done; a cancellation takes effect after it."""
    task = asyncio.ensure_future(work)
    interrupt = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    task.result()


def _was_cancelled() -> bool:
    """Whether somebody cancelled this task; otherwise the CancelledError is the environment's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _crash(method: str, error: BaseException) -> Fault:
    return Fault(StopReason.ENV_CRASH, f"{method} raised {type(error).__name__}: {error}")


def _finish(result: Any) -> Any:
    """The answer of a method written as a coroutine although it blocks."""

    async def wait() -> Any:
        return await result

    return asyncio.run(wait()) if inspect.isawaitable(result) else result

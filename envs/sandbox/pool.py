"""A pool of live sandboxes: a config goes in, exclusive leases and shared Python calls come out.

All methods belong to the event loop, and the thread, in which `start` ran. A lease has a sandbox to itself until its
block ends, then the sandbox is swept. A shared call runs beside others in the least busy sandbox that is not leased,
each in its own processes and directories.
"""

import asyncio
import collections
import contextlib
import dataclasses
import difflib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

from agentjax.envs.sandbox.api import (
    ExecResult,
    Limits,
    Sandbox,
    SandboxConfig,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
)
from agentjax.envs.sandbox.bubblewrap import BubblewrapSandbox
from agentjax.envs.sandbox.host import bubblewrap_limits
from agentjax.envs.sandbox.lease import Counters, Lease
from agentjax.envs.sandbox.unsandboxed import UnsandboxedSubprocess, unsandboxed_limits

RESTART_WAITS_S = (0.0, 0.2, 1.0, 5.0)  # before each attempt to replace a lost session


@dataclasses.dataclass(frozen=True)
class Backend:
    """One way to isolate code: how to start a session, and what it holds code to."""

    start: Callable[[SandboxConfig], Awaitable[Sandbox]]
    limits: Callable[[SandboxConfig], Limits]


BACKENDS = {
    "bubblewrap": Backend(BubblewrapSandbox.start, bubblewrap_limits),
    "unsandboxed_subprocess": Backend(UnsandboxedSubprocess.start, unsandboxed_limits),
}


def find_backend(name: str) -> Backend:
    """The backend called `name`.

    Raises:
        ValueError: If there is none; names the nearest.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    near = difflib.get_close_matches(name, BACKENDS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"sandbox.backend must be one of {', '.join(map(repr, BACKENDS))}, got {name!r}.{hint}")


@dataclasses.dataclass(eq=False)
class _Slot:
    """A place for one session: the session if it is up, and who uses it."""

    sandbox: Sandbox | None
    leased: bool = False
    shared_calls: int = 0
    idle: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)  # set while no shared call runs

    @property
    def alive(self) -> bool:
        return self.sandbox is not None and self.sandbox.alive

    def take(self, exclusive: bool) -> None:
        if exclusive:
            self.leased = True
        else:
            self.shared_calls += 1
        self.idle.set() if self.shared_calls == 0 else self.idle.clear()

    def release(self, exclusive: bool) -> None:
        if exclusive:
            self.leased = False
        else:
            self.shared_calls -= 1
        self.idle.set() if self.shared_calls == 0 else self.idle.clear()


@dataclasses.dataclass(eq=False)
class _Waiter:
    """Someone in the queue for a slot."""

    exclusive: bool
    slot: asyncio.Future[_Slot]


class SandboxPool:
    """Live sandboxes, lent out in the order asked for; a dead one is replaced.

    Attributes:
        counters: Leases, calls, timeouts, lost and replaced sessions so far.
        limits: What the backend holds code to on this host; `str(limits)` is for people.
    """

    def __init__(self, config: SandboxConfig, backend: Backend | None = None):
        self._config = config
        self._backend = backend or find_backend(config.backend)
        self._most_shared_calls = max(1, config.processes // 4)  # a session, so that its calls may start processes too
        self._slots: list[_Slot] = []
        self._queue: collections.deque[_Waiter] = collections.deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._refusal = SandboxError("The sandbox pool is not started.")  # what a caller hears while there are no slots
        self.counters = Counters()
        self.limits = self._backend.limits(config)

    async def start(self) -> None:
        """Start every session.

        Raises:
            SandboxUnavailable: If the backend cannot run here; says what to install or set. Nothing is left running.
        """
        started = await asyncio.gather(
            *(self._backend.start(self._config) for _ in range(self._config.sessions)), return_exceptions=True
        )
        self._slots = [_Slot(sandbox) for sandbox in started if not isinstance(sandbox, BaseException)]
        for failure in started:
            if isinstance(failure, BaseException):
                await self.close()
                raise failure

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Sandbox]:
        """A sandbox to oneself for the length of an `async with` block; swept afterwards.

        Raises:
            SandboxUnavailable: If no session is left and none can be started.
            SandboxError: If the pool is closed.
        """
        slot, sandbox = await self._take(exclusive=True)
        self.counters.leases += 1
        lease = Lease(sandbox, self.counters)
        try:
            yield lease
        finally:
            lease.end()
            await asyncio.shield(self._background(self._end_lease(slot, sandbox)))

    async def run_python(
        self, code: str, *, timeout_s: float | None = None, max_output: int | None = None
    ) -> ExecResult:
        """Run Python source once, beside other such calls: no lease, and none of its files are kept.

        Args:
            code: Python source; what it prints is the output, tracebacks included.
            timeout_s: Wall-clock limit in seconds, from when the code starts; the config's if None.
            max_output: Bytes of output kept; the config's if None.

        Raises:
            SandboxLost: If the session died; it is replaced.
            SandboxUnavailable: If no session is left and none can be started.
            SandboxError: If the pool is closed.
        """
        slot, sandbox = await self._take(exclusive=False)
        try:
            result = await sandbox.run_python(code, timeout_s=timeout_s, max_output=max_output, private=True)
        finally:
            self._release(slot, exclusive=False)
        return self.counters.count(result)

    async def close(self) -> None:
        """End every session and refuse everyone waiting; leaves no process and no file. May be called twice."""
        self._closed = True
        self._refuse_all(SandboxError("The sandbox pool is closed."))
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        slots, self._slots = self._slots, []
        await asyncio.gather(*(slot.sandbox.close() for slot in slots if slot.sandbox))

    async def _take(self, *, exclusive: bool) -> tuple[_Slot, Sandbox]:
        """Wait in the queue for a slot whose session is up; a lease also waits for its shared calls to end."""
        while True:
            slot = await self._wait_in_queue(exclusive)
            try:
                if exclusive:
                    await slot.idle.wait()
            except asyncio.CancelledError:
                self._release(slot, exclusive=exclusive)
                raise
            if slot.sandbox is not None and slot.sandbox.alive:
                return slot, slot.sandbox
            self._release(slot, exclusive=exclusive)

    async def _wait_in_queue(self, exclusive: bool) -> _Slot:
        if not self._slots:
            raise self._refusal
        waiter = _Waiter(exclusive, asyncio.get_running_loop().create_future())
        self._queue.append(waiter)
        self._serve_queue()
        try:
            return await waiter.slot
        except asyncio.CancelledError:
            if waiter.slot.done() and not waiter.slot.cancelled() and not waiter.slot.exception():
                self._release(waiter.slot.result(), exclusive=exclusive)
            raise

    def _serve_queue(self) -> None:
        """Give slots to those in the queue, in order, as long as there are any."""
        while self._queue:
            slot = self._least_busy()
            if slot is None:
                return
            waiter = self._queue.popleft()
            if not waiter.slot.done():  # else its coroutine was cancelled
                slot.take(waiter.exclusive)
                waiter.slot.set_result(slot)

    def _least_busy(self) -> _Slot | None:
        for slot in self._slots:
            self._replace_if_dead(slot)
        free = [s for s in self._slots if s.alive and not s.leased and s.shared_calls < self._most_shared_calls]
        return min(free, key=lambda slot: slot.shared_calls, default=None)

    def _release(self, slot: _Slot, *, exclusive: bool) -> None:
        slot.release(exclusive)
        self._replace_if_dead(slot)
        self._serve_queue()

    async def _end_lease(self, slot: _Slot, sandbox: Sandbox) -> None:
        try:
            if sandbox.alive:
                await sandbox.sweep()
        except SandboxLost:
            pass  # counted and replaced by the release
        finally:
            self._release(slot, exclusive=True)

    def _replace_if_dead(self, slot: _Slot) -> None:
        if self._closed or slot.sandbox is None or slot.sandbox.alive or slot.leased:
            return
        self.counters.lost += 1
        dead, slot.sandbox = slot.sandbox, None
        self._background(self._replace(slot, dead))

    async def _replace(self, slot: _Slot, dead: Sandbox) -> None:
        await dead.close()
        failure: Exception | None = None
        for wait_s in RESTART_WAITS_S:
            await asyncio.sleep(wait_s)
            try:
                slot.sandbox = await self._backend.start(self._config)
            except (SandboxError, OSError) as error:
                failure = error
                continue
            self.counters.replaced += 1
            self._serve_queue()
            return
        self._slots.remove(slot)
        if not self._slots:
            self._refuse_all(SandboxUnavailable(f"Every sandbox session was lost and none could be started: {failure}"))

    def _refuse_all(self, error: SandboxError) -> None:
        self._refusal = error
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.slot.done():
                waiter.slot.set_exception(error)

    def _background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def make_pool(config: SandboxConfig) -> SandboxPool:
    """The pool for `config`, not yet started.

    Raises:
        ValueError: If there is no backend of that name; names the nearest.
    """
    return SandboxPool(config)

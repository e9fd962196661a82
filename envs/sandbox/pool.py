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
from collections.abc import AsyncIterator, Awaitable, Callable

from agentjax.envs.sandbox.api import ExecResult, Limits, Sandbox, SandboxConfig, SandboxError, SandboxLost
from agentjax.envs.sandbox.api import SandboxUnavailable
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

    sandbox: Sandbox | None = None
    shared_calls: int = 0
    leased: bool = False
    drained: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)  # set while no shared call runs

    def open_to(self, most_shared_calls: int) -> bool:
        return self.sandbox is not None and not self.leased and self.shared_calls < most_shared_calls


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
        self._replacements: set[asyncio.Task[None]] = set()
        self._closed = False
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
        slot = await self._take(exclusive=True)
        assert slot.sandbox is not None
        self.counters.leases += 1
        lease = Lease(slot.sandbox, self.counters)
        try:
            yield lease
        finally:
            lease.end()
            await asyncio.shield(self._give_back_lease(slot))

    async def run_python(
        self, code: str, *, timeout_s: float | None = None, max_output: int | None = None
    ) -> ExecResult:
        """Run Python source once, beside other such calls: no lease, nothing kept of its files.

        Args:
            code: Python source; what it prints is the output, tracebacks included.
            timeout_s: Wall-clock limit in seconds, from when the code starts; the config's if None.
            max_output: Bytes of output kept; the config's if None.

        Raises:
            SandboxLost: If the session died; it is replaced.
            SandboxUnavailable: If no session is left and none can be started.
            SandboxError: If the pool is closed.
        """
        slot = await self._take(exclusive=False)
        sandbox = slot.sandbox
        assert sandbox is not None
        try:
            result = await sandbox.run_python(code, timeout_s=timeout_s, max_output=max_output, private=True)
        finally:
            self._give_back_share(slot)
        return self.counters.count(result)

    async def close(self) -> None:
        """End every session and refuse everyone waiting; leaves no process and no file."""
        self._closed = True
        self._refuse_all(SandboxError("The sandbox pool is closed."))
        for task in self._replacements:
            task.cancel()
        await asyncio.gather(*self._replacements, return_exceptions=True)
        sandboxes = [slot.sandbox for slot in self._slots if slot.sandbox]
        self._slots = []
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))

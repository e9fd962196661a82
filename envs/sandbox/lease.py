"""A sandbox on loan: calls go through and are counted, until the lease is over."""

import dataclasses
from collections.abc import Mapping

from agentjax.envs.sandbox.api import ExecResult, Sandbox, SandboxError


@dataclasses.dataclass
class Counters:
    """What a pool has seen since it started.

    Attributes:
        leases: Exclusive leases given.
        calls: Commands and pieces of code that gave a result.
        timeouts: Those of them killed at their wall-clock limit.
        lost: Sessions that died.
        replaced: Sessions started in place of lost ones.
    """

    leases: int = 0
    calls: int = 0
    timeouts: int = 0
    lost: int = 0
    replaced: int = 0

    def count(self, result: ExecResult) -> ExecResult:
        """Count a call by its result, which it returns."""
        self.calls += 1
        self.timeouts += result.timed_out
        return result


class Lease:
    """A `Sandbox` that its holder has alone. Every method raises `SandboxError` once the lease is over."""

    def __init__(self, sandbox: Sandbox, counters: Counters):
        self._sandbox: Sandbox | None = sandbox
        self._counters = counters

    def end(self) -> None:
        """Refuse all further calls."""
        self._sandbox = None

    def _held(self) -> Sandbox:
        if self._sandbox is None:
            raise SandboxError("This lease is over: use the sandbox within `async with pool.lease()`.")
        return self._sandbox

    @property
    def workdir(self) -> str:
        """Directory in which commands and code start."""
        return self._held().workdir

    @property
    def alive(self) -> bool:
        """Whether the sandbox can still take calls."""
        return self._sandbox is not None and self._sandbox.alive

    async def exec(
        self,
        cmd: str,
        *,
        timeout_s: float | None = None,
        max_output: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a shell command; see `Sandbox.exec`."""
        held = self._held()
        return self._counters.count(await held.exec(cmd, timeout_s=timeout_s, max_output=max_output, cwd=cwd, env=env))

    async def run_python(
        self, code: str, *, timeout_s: float | None = None, max_output: int | None = None, private: bool = False
    ) -> ExecResult:
        """Run Python source; see `Sandbox.run_python`."""
        held = self._held()
        return self._counters.count(
            await held.run_python(code, timeout_s=timeout_s, max_output=max_output, private=private)
        )

    async def put(self, path: str, data: bytes) -> None:
        """Write a file; see `Sandbox.put`."""
        await self._held().put(path, data)

    async def get(self, path: str, max_bytes: int) -> bytes:
        """Read a file; see `Sandbox.get`."""
        return await self._held().get(path, max_bytes)

    async def sweep(self) -> None:
        """Kill every process and delete every file the code made."""
        await self._held().sweep()

    async def close(self) -> None:
        """End the session early; the pool replaces it."""
        await self._held().close()

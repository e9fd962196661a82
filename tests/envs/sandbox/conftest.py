"""Live sessions for the tests: each test gets a fresh one, which must leave no process behind."""

import asyncio
import os
import time

import pytest

from agentjax.envs.sandbox import SandboxConfig
from agentjax.envs.sandbox.bubblewrap import BubblewrapSandbox

SMALL = SandboxConfig(
    sessions=2,
    timeout_s=5.0,
    max_output_bytes=4096,
    memory_bytes=256 << 20,
    file_bytes=1 << 20,
    tmpfs_bytes=4 << 20,
    processes=32,
    cpu_s=1,
)


class Processes:
    """The host's process table."""

    @staticmethod
    def _stat(pid: str) -> list[str] | None:
        """State, parent id and so on; None if there is no such process."""
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()
        except OSError:
            return None

    def below(self, pid: int) -> set[int]:
        """Ids of the descendants of `pid`."""
        stats = {int(entry): self._stat(entry) for entry in filter(str.isdigit, os.listdir("/proc"))}
        found, fresh = set(), {pid}
        while fresh:
            fresh = {child for child, stat in stats.items() if stat and int(stat[1]) in fresh}
            found |= fresh
        return found

    def are_gone(self, pids: set[int], within_s: float = 5.0) -> bool:
        """Whether every process ends in time; a zombie that waits for the host's init has ended."""
        deadline = time.monotonic() + within_s
        while any((stat := self._stat(str(pid))) and stat[0] != "Z" for pid in pids):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


@pytest.fixture
def processes():
    return Processes()


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


class Session:
    """A session whose calls block, so that a test reads as a script."""

    def __init__(self, runner: asyncio.Runner, sandbox: BubblewrapSandbox):
        self.runner, self.sandbox = runner, sandbox

    def __getattr__(self, name):
        method = getattr(self.sandbox, name)
        return lambda *args, **options: self.runner.run(method(*args, **options))


@pytest.fixture
def session(runner, processes):
    sandbox = runner.run(BubblewrapSandbox.start(SMALL))
    inside = {sandbox.pid} | processes.below(sandbox.pid)
    yield Session(runner, sandbox)
    runner.run(sandbox.close())
    assert processes.are_gone(inside)

"""The backend without isolation: a config goes in, plain subprocesses of this program come out.

For code that is trusted, and for hosts where no sandbox can run. It must be asked for by its name,
`unsandboxed_subprocess`: code sees the host's files and network and runs as this program's user.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentjax.envs.sandbox.api import ExecResult, Limits, SandboxConfig, SandboxLost

FLOOD_BYTES = 16 << 20  # a call that writes this much beyond its cap is killed


class UnsandboxedSubprocess:
    """A temporary directory in which commands run as plain subprocesses. See `Sandbox` for the methods."""

    def __init__(self, config: SandboxConfig):
        self._config = config
        self._root = Path(tempfile.mkdtemp(prefix="agentjax-unsandboxed-")).resolve()
        self._groups: set[int] = set()

    @classmethod
    async def start(cls, config: SandboxConfig) -> "UnsandboxedSubprocess":
        """Make the directory; nothing runs until the first call."""
        return cls(config)

    @property
    def workdir(self) -> str:
        """Path of the temporary directory."""
        return str(self._root)

    @property
    def alive(self) -> bool:
        """Whether the directory still exists."""
        return self._root.is_dir()

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
        return await self._run(["/bin/bash", "-c", cmd], timeout_s, max_output, cwd or self.workdir, env or {})

    async def run_python(
        self, code: str, *, timeout_s: float | None = None, max_output: int | None = None, private: bool = False
    ) -> ExecResult:
        """Run Python source in a new interpreter; see `Sandbox.run_python`."""
        command = [sys.executable, "-I", "-c", code]
        if not private:
            return await self._run(command, timeout_s, max_output, self.workdir, {})
        with tempfile.TemporaryDirectory(dir=self._root) as own:
            return await self._run(command, timeout_s, max_output, own, {})

    async def put(self, path: str, data: bytes) -> None:
        """Write a file; see `Sandbox.put`."""
        target = self._inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    async def get(self, path: str, max_bytes: int) -> bytes:
        """Read a file; see `Sandbox.get`."""
        source = self._inside(path)
        if not source.is_file():
            raise FileNotFoundError(2, "no such file in the sandbox", path)
        if source.stat().st_size > max_bytes:
            raise ValueError(f"{path!r} is longer than max_bytes={max_bytes}.")
        return source.read_bytes()

    async def sweep(self) -> None:
        """Kill the process groups of all calls and empty the directory; what left its group goes on."""
        self._kill_groups()
        self._require_alive()
        for entry in self._root.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    async def close(self) -> None:
        """Kill the process groups of all calls and remove the directory."""
        self._kill_groups()
        shutil.rmtree(self._root, ignore_errors=True)

    async def _run(
        self, argv: list[str], timeout_s: float | None, max_output: int | None, cwd: str, env: Mapping[str, str]
    ) -> ExecResult:
        self._require_alive()
        minimal = {"PATH": os.environ.get("PATH", os.defpath), "HOME": self.workdir, "LANG": "C.UTF-8"}
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env={**minimal, **env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._groups.add(process.pid)
        output = _Output(self._config.max_output_bytes if max_output is None else max_output)
        timed_out = False
        try:
            async with asyncio.timeout(self._config.timeout_s if timeout_s is None else timeout_s):
                await output.collect(process)
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            if process.returncode is None:
                _kill_group(process.pid)
        returncode = await process.wait()
        return ExecResult(returncode, output.kept.decode("utf-8", "replace"), timed_out, output.dropped)

    def _inside(self, path: str) -> Path:
        self._require_alive()
        full = (self._root / path).resolve()
        if self._root not in full.parents:
            raise ValueError(f"path must lie in {self._root}, got {path!r}.")
        return full

    def _require_alive(self) -> None:
        if not self.alive:
            raise SandboxLost("sandbox session lost: its directory is gone.")

    def _kill_groups(self) -> None:
        while self._groups:
            _kill_group(self._groups.pop())


class _Output:
    """What a process wrote, up to a cap; a flood beyond it ends the collection."""

    def __init__(self, cap: int):
        self.cap, self.kept, self.dropped = cap, bytearray(), 0

    async def collect(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while data := await process.stdout.read(1 << 16):
            kept = data[: self.cap - len(self.kept)]
            self.kept += kept
            self.dropped += len(data) - len(kept)
            if self.dropped > FLOOD_BYTES:
                _kill_group(process.pid)
                return


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone, or its number belongs to somebody else by now


def unsandboxed_limits(config: SandboxConfig) -> Limits:
    """What the backend without isolation holds code to."""
    enforced = (
        f"per call, unless it says otherwise: {config.timeout_s:g} s of wall clock, "
        f"{config.max_output_bytes // 1024} KiB of output",
        "an environment without this program's variables",
    )
    not_enforced = (
        "anything else: code runs as this program's user, with its files, its network and all of the host's memory",
        "processes that leave their group survive a timeout",
    )
    return Limits("unsandboxed_subprocess", enforced, not_enforced)

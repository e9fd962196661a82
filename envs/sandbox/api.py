"""What a sandbox is: commands, Python code and files go in, an `ExecResult` comes out."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

MIB = 1 << 20


class SandboxError(RuntimeError):
    """A fault of the sandbox itself, never of the code that ran in it."""


class SandboxUnavailable(SandboxError):
    """The backend cannot run on this host; the message says what to install or set."""


class SandboxLost(SandboxError):
    """The session died under the call: its outcome is unknown and the files of the session are gone."""


@dataclasses.dataclass(frozen=True)
class ExecResult:
    """How one command or piece of code ended.

    Attributes:
        returncode: Exit status; minus the signal number if a signal ended it, as in `subprocess`.
        output: stdout and stderr in the order written, cut at the output cap; bytes that are not UTF-8 become U+FFFD.
        timed_out: Whether it was killed at its wall-clock limit.
        truncated: Bytes of output dropped beyond the cap; 0 if `output` is complete.
    """

    returncode: int
    output: str
    timed_out: bool = False
    truncated: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SandboxConfig:
    """Which backend runs untrusted code, and what that code may use.

    `processes`, `tmpfs_bytes` and everything written to disk are counted per session; the other limits hold for each
    process (memory, file, CPU) or each call (time, output).
    """

    backend: str = "bubblewrap"  # "bubblewrap", or "unsandboxed_subprocess" for code that is trusted
    sessions: int = 4  # live sandboxes kept by the pool
    timeout_s: float = 10.0  # wall-clock limit of a call that names none, seconds
    max_output_bytes: int = 64 * 1024  # output kept of a call that names no cap, bytes
    memory_bytes: int = 512 * MIB  # address space of one process, bytes
    file_bytes: int = 64 * MIB  # largest file a process may write, bytes
    tmpfs_bytes: int = 64 * MIB  # size of each writable directory, bytes
    processes: int = 64  # processes and threads alive at once in a session
    cpu_s: int = 60  # CPU time of one process, whole seconds

    def __post_init__(self):
        for name, least, why in _LEAST:
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"sandbox.{name} must be >= {least} {why}, got {value!r}.")
        if not self.timeout_s > 0:
            raise ValueError(f"sandbox.timeout_s must be > 0 seconds, got {self.timeout_s!r}.")


_LEAST = (
    ("sessions", 1, "so that there is a sandbox to run in"),
    ("max_output_bytes", 1, "byte"),
    ("memory_bytes", 64 * MIB, "bytes (64 MiB), below which Python does not start"),
    ("file_bytes", 4096, "bytes"),
    ("tmpfs_bytes", 4096, "bytes (one page)"),
    ("processes", 4, "so that a shell can start a command"),
    ("cpu_s", 1, "second"),
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a backend holds code to on this host, and what it cannot; printed at start-up.

    Attributes:
        backend: Name of the backend.
        enforced: One statement per limit in force.
        not_enforced: One statement per thing that code can do all the same.
    """

    backend: str
    enforced: tuple[str, ...]
    not_enforced: tuple[str, ...]

    def __str__(self) -> str:
        held = [f"  holds: {line}" for line in self.enforced]
        open_ends = [f"  does not hold: {line}" for line in self.not_enforced]
        return "\n".join([f"sandbox: {self.backend}", *held, *open_ends])


class Sandbox(Protocol):
    """One isolated place to run code in, with its own processes and files.

    A relative path is taken from `workdir`, the writable directory in which commands and code start.

    Limits that a call does not name come from `SandboxConfig`. Every method raises `SandboxLost` if the session died.
    What the code does (exit status, hang, flood) is data in the `ExecResult` and never raises.

    Attributes:
        workdir: Absolute path, as code in the sandbox sees it.
        alive: Whether the sandbox can still take calls.
    """

    @property
    def workdir(self) -> str: ...

    @property
    def alive(self) -> bool: ...

    async def exec(
        self,
        cmd: str,
        *,
        timeout_s: float | None = None,
        max_output: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run `cmd` with `/bin/bash -c`.

        Processes it leaves behind go on until `sweep`; a timeout kills every process of the sandbox.

        Args:
            cmd: Shell command line.
            timeout_s: Wall-clock limit in seconds.
            max_output: Bytes of output kept.
            cwd: Working directory; `workdir` if None.
            env: Variables added to the otherwise minimal environment.
        """
        ...

    async def run_python(
        self, code: str, *, timeout_s: float | None = None, max_output: int | None = None, private: bool = False
    ) -> ExecResult:
        """Run Python source in a fresh `__main__`; whatever it starts dies with it.

        Args:
            code: Python source; what it prints is the output, tracebacks included.
            timeout_s: Wall-clock limit in seconds.
            max_output: Bytes of output kept.
            private: Give the code empty writable directories of its own, gone with the call.
        """
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Write `data` to `path`, in a writable directory; makes parent folders.

        Raises:
            ValueError: If `path` lies outside the writable directories.
            SandboxError: If the file cannot be written.
        """
        ...

    async def get(self, path: str, max_bytes: int) -> bytes:
        """Read the file at `path`, in a writable directory.

        Raises:
            ValueError: If `path` lies outside the writable directories, or the file is longer than `max_bytes`.
            FileNotFoundError: If there is no such file.
            SandboxError: If the file cannot be read.
        """
        ...

    async def sweep(self) -> None:
        """Kill every process and delete every file the code made."""
        ...

    async def close(self) -> None:
        """End the session; leaves no process and no file. May be called twice."""
        ...

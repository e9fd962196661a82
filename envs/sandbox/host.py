"""What this host offers for isolation: programs and kernel settings in, paths, advice and plain statements out."""

import os
import platform
import shutil
import sys
from pathlib import Path

from agentjax.envs.sandbox.api import MIB, Limits, SandboxConfig, SandboxUnavailable

UNSANDBOXED = "--config.sandbox.backend=unsandboxed_subprocess"
ASK_UNSANDBOXED = f"To run code with no isolation at all, ask for it: {UNSANDBOXED}."


def find_bwrap() -> str:
    """Path of the bubblewrap program.

    Raises:
        SandboxUnavailable: If it is not installed; says how to.
    """
    if path := shutil.which("bwrap"):
        return path
    raise SandboxUnavailable(
        "sandbox.backend='bubblewrap' needs the program `bwrap`, which is not on PATH. Install it: "
        "`apt-get install bubblewrap` (Debian, Ubuntu) or `dnf install bubblewrap` (Fedora); it needs Linux. "
        + ASK_UNSANDBOXED
    )


def find_python() -> str:
    """Path of the Python that runs inside the sandbox: the system's, else the one running now."""
    candidates = ("/usr/bin/python3", "/usr/local/bin/python3", os.path.realpath(sys.executable))
    return next(path for path in candidates if os.access(path, os.X_OK))


def explain_refusal(stderr: str, proc: Path = Path("/proc")) -> str:
    """What to set so that bubblewrap can make its namespaces here, given what it complained of.

    Args:
        stderr: What bwrap, or the server in it, wrote before it ended.
        proc: Where the kernel's settings are read.
    """
    refused = any(word in stderr for word in ("ermission", "not permitted", "namespace"))
    remedies = [remedy for name, refusing, remedy in _SETTINGS if _read(proc / "sys" / name) == refusing]
    advice = (remedies or [_CONTAINER])[0] if refused else ""
    said = f"bubblewrap could not start a sandbox: {stderr.strip() or 'no message'}."
    return " ".join(part for part in (said, advice, ASK_UNSANDBOXED) if part)


_SETTINGS = (
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor keeps user namespaces from programs without a profile (Ubuntu 24.04's default). Give bwrap one that "
        "holds `userns,`, or allow all: `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`.",
    ),
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "User namespaces are off for users: `sudo sysctl -w kernel.unprivileged_userns_clone=1`.",
    ),
    (
        "user/max_user_namespaces",
        "0",
        "User namespaces are off: `sudo sysctl -w user.max_user_namespaces=10000`.",
    ),
)
_CONTAINER = (
    "Inside a container, start it so that it may make namespaces: `docker run --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined`."
)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def bubblewrap_limits(config: SandboxConfig) -> Limits:
    """What bubblewrap holds code to on this host under `config`."""
    enforced = (
        "own user, process, network, mount, ipc and host-name namespaces; no network, no environment, no capabilities",
        "host files invisible but for a read-only /usr; writable directories in memory, "
        f"{config.tmpfs_bytes // MIB} MiB each, wiped between leases",
        f"per process: {config.memory_bytes // MIB} MiB of address space, files of {config.file_bytes // MIB} MiB, "
        f"{config.cpu_s} s of CPU",
        f"per session: {config.processes} processes",
        f"per call, unless it says otherwise: {config.timeout_s:g} s of wall clock, "
        f"{config.max_output_bytes // 1024} KiB of output",
        "when memory runs short the kernel ends sandboxes before this program",
    )
    worst = config.sessions * config.processes * config.memory_bytes / (1 << 30)
    not_enforced: tuple[str, ...] = (
        f"the memory of all processes together (at worst {worst:.0f} GiB) and of their files: that takes a memory cgroup",
        "the host's kernel is shared, and no filter of system calls is set",
    )
    if _kernel() < (5, 14):
        not_enforced += ("kernel < 5.14: the limit of processes counts all of this user's, not the session's",)
    return Limits("bubblewrap", enforced, not_enforced)


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)

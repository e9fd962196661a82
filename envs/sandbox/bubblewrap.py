"""The default backend: a config goes in, a live session in its own Linux namespaces comes out. No daemon, no root.

A session is one bubblewrap namespace with the exec server (`exec_server`) as its process 1; host and server exchange
frames over its stdin and stdout. Nothing of it is on the host's disk, and it dies with the thread that started it.
"""

import asyncio
import errno
import importlib.resources
import json
import os
import posixpath
import secrets
from collections.abc import Mapping
from typing import Any

from agentjax.envs.sandbox.api import ExecResult, SandboxConfig, SandboxError, SandboxLost, SandboxUnavailable
from agentjax.envs.sandbox.channel import Channel
from agentjax.envs.sandbox.host import explain_refusal, find_bwrap, find_python

WRITABLE = ("/app", "/tmp", "/dev/shm")  # the first is the working directory and HOME
NOBODY = 65534  # uid and gid of sessions when this program runs as root, where rlimits would not hold
START_S = 20.0  # a session that is not ready by then will not be
GRACE_S = 10.0  # a server that is this late with a result is stuck
CLOSE_S = 2.0  # a server that has not ended by then is killed
FILE_S = 10.0  # wall-clock limit of reading or writing a file

_BOOT = """
import json, sys, types
sources, settings = map(json.loads, sys.argv[1:])
package = sys.modules["agentjax.envs.sandbox"] = types.ModuleType("agentjax.envs.sandbox")
for name, source in sources.items():
    module = sys.modules[package.__name__ + "." + name] = types.ModuleType(name)
    exec(compile(source, name + ".py", "exec"), module.__dict__)
module.main(settings)
"""


class BubblewrapSandbox:
    """A live session. See `Sandbox` for the methods it shares with every backend."""

    workdir = WRITABLE[0]

    def __init__(self, config: SandboxConfig, transport: asyncio.SubprocessTransport, channel: Channel):
        self._config, self._transport, self._channel = config, transport, channel

    @classmethod
    async def start(cls, config: SandboxConfig) -> "BubblewrapSandbox":
        """Start a session and wait until it can take calls.

        Raises:
            SandboxUnavailable: If bubblewrap is missing or may not make namespaces; says what to install or set.
        """
        argv = _argv(find_bwrap(), find_python(), config)
        identity: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        transport, channel = await asyncio.get_running_loop().subprocess_exec(
            Channel,
            *argv,
            env={},
            start_new_session=True,
            **identity,  # Ctrl-C is for this program alone
        )
        session = cls(config, transport, channel)
        try:
            await asyncio.wait_for(channel.ready, START_S)
        except (SandboxLost, TimeoutError) as error:
            await session.close()
            raise SandboxUnavailable(explain_refusal(channel.complaint or f"not up in {START_S:g} s")) from error
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def alive(self) -> bool:
        """Whether the session can still take calls."""
        return self._channel.lost is None

    @property
    def pid(self) -> int:
        """Process id of bubblewrap on the host; the session dies with it."""
        return self._transport.get_pid()

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
        return await self._run("exec", cmd, timeout_s, max_output, cwd=cwd, env=dict(env or {}))

    async def run_python(
        self, code: str, *, timeout_s: float | None = None, max_output: int | None = None, private: bool = False
    ) -> ExecResult:
        """Run Python source; see `Sandbox.run_python`."""
        return await self._run("python", code, timeout_s, max_output, private=private)

    async def put(self, path: str, data: bytes) -> None:
        """Write a file; see `Sandbox.put`."""
        reply, _ = await self._call("put", data, FILE_S, 0, path=_writable(path))
        _raise_for_file(reply, path)

    async def get(self, path: str, max_bytes: int) -> bytes:
        """Read a file; see `Sandbox.get`."""
        reply, data = await self._call("get", b"", FILE_S, max_bytes, path=_writable(path))
        if reply["returncode"] == errno.EFBIG:
            raise ValueError(f"{path!r} is longer than max_bytes={max_bytes}.")
        _raise_for_file(reply, path)
        return data

    async def sweep(self) -> None:
        """Kill every process and delete every file the code made."""
        await self._call("sweep", b"", 0.0, 0)

    async def close(self) -> None:
        """End the session; see `Sandbox.close`."""
        self._channel.lose("it was closed")
        self._channel.hang_up()
        try:
            await asyncio.wait_for(self._channel.exited.wait(), CLOSE_S)
        except TimeoutError:
            self._transport.kill()
            await self._channel.exited.wait()
        self._transport.close()

    async def _run(
        self, kind: str, source: str, timeout_s: float | None, max_output: int | None, **fields: Any
    ) -> ExecResult:
        timeout_s = self._config.timeout_s if timeout_s is None else timeout_s
        max_output = self._config.max_output_bytes if max_output is None else max_output
        reply, output = await self._call(kind, source.encode("utf-8", "replace"), timeout_s, max_output, **fields)
        text = output.decode("utf-8", "replace")
        return ExecResult(reply["returncode"], text, reply["timed_out"], reply["truncated"])

    async def _call(
        self, kind: str, payload: bytes, timeout_s: float, max_output: int, **fields: Any
    ) -> tuple[dict[str, Any], bytes]:
        header = {"id": secrets.token_hex(16), "kind": kind, "timeout_s": timeout_s, "max_output": max_output, **fields}
        result = self._channel.request(header, payload)
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                return await result
        except TimeoutError:
            self._channel.lose(f"the session gave no result {GRACE_S:g} s after the limit of the call")
            self._transport.kill()
            raise SandboxLost(str(self._channel.lost)) from None
        except asyncio.CancelledError:
            self._channel.cancel(header["id"])
            raise


def _argv(bwrap: str, python: str, config: SandboxConfig) -> list[str]:
    """The command line of a session: its namespaces, its file system, and the server with its settings."""
    settings = {
        "writable": WRITABLE,
        "tmpfs_bytes": config.tmpfs_bytes,
        "rlimits": {
            "RLIMIT_AS": config.memory_bytes,
            "RLIMIT_FSIZE": config.file_bytes,
            "RLIMIT_NPROC": config.processes,
            "RLIMIT_CPU": config.cpu_s,
            "RLIMIT_CORE": 0,
        },
    }
    package = importlib.resources.files("agentjax.envs.sandbox")
    sources = {name: (package / f"{name}.py").read_text("utf-8") for name in ("exec_child", "exec_server")}
    server = [python, "-I", "-c", _BOOT, json.dumps(sources), json.dumps(settings)]
    return [bwrap, *_NAMESPACES, *_file_system(python), "--chdir", "/", "--", *server]


# The server makes namespaces for its children and closes user namespaces to them: two capabilities within its own.
_NAMESPACES = (
    "--unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try --hostname sandbox "
    "--die-with-parent --new-session --as-pid-1 --cap-drop ALL --cap-add CAP_SYS_ADMIN --cap-add CAP_SYS_RESOURCE "
    f"--clearenv --setenv PATH /usr/local/bin:/usr/bin:/bin --setenv HOME {WRITABLE[0]} --setenv LANG C.UTF-8"
).split()


def _file_system(python: str) -> list[str]:
    """Mount arguments: the system's programs and libraries read-only, /proc, a minimal /dev, and nothing to write to."""
    mounts = ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    mounts += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(path):
            mounts += ["--symlink", os.readlink(path), path]
        else:
            mounts += ["--ro-bind-try", path, path]
    if not python.startswith("/usr/"):
        prefix = os.path.dirname(os.path.dirname(python))
        mounts += ["--ro-bind", prefix, prefix]
    mounts += ["--proc", "/proc", "--dev", "/dev"]
    for path in WRITABLE:
        mounts += ["--dir", path]
    return [*mounts, "--remount-ro", "/dev", "--remount-ro", "/"]


def _writable(path: str) -> str:
    """The absolute form of `path`, checked. A link within may still point elsewhere: the child may not follow it far."""
    full = posixpath.normpath(posixpath.join(WRITABLE[0], path))
    if not any(full.startswith(root + "/") for root in WRITABLE):
        raise ValueError(f"path must lie in one of {', '.join(WRITABLE)}, got {path!r}.")
    return full


def _raise_for_file(reply: Mapping[str, Any], path: str) -> None:
    if reply["timed_out"]:
        raise SandboxError(f"{path!r}: no answer within {FILE_S:g} s.")
    if reply["returncode"] == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, "no such file in the sandbox", path)
    if reply["returncode"]:
        raise SandboxError(f"{path!r}: {os.strerror(reply['returncode'])}.")

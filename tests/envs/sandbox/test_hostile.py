"""Code that attacks the exec server cannot forge a result; at worst its own session is lost."""

import asyncio
import os
import shutil
import signal

import pytest

from agentjax.envs.sandbox import SandboxLost

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

# These print what they reach; reaching nothing prints nothing.
OPEN_DESCRIPTORS = """
import os
for fd in range(3, 4096):
    try:
        os.fstat(fd)
        print("inherited", fd)
    except OSError:
        pass
for pid in {pids}:
    for fd in range(64):
        for flags in (os.O_RDONLY, os.O_WRONLY):
            try:
                os.open(f"/proc/{{pid}}/fd/{{fd}}", flags | os.O_NONBLOCK)
                print("opened", pid, fd)
            except OSError:
                pass
"""
TRACE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in {pids}:
    if libc.ptrace(16, pid, 0, 0) == 0:  # PTRACE_ATTACH
        print("traced", pid)
    for name in ("mem", "maps", "environ", "root", "cwd"):
        try:
            target = f"/proc/{{pid}}/{{name}}"
            os.listdir(target) if name in ("root", "cwd") else open(target, "rb").read(1)
            print("read", pid, name)
        except OSError:
            pass
"""


def in_shell(code):
    """The same code under a Python of its own, in the session's process namespace."""
    return f"python3 -I - <<'END'\n{code}\nEND"


def test_the_control_pipes_are_out_of_reach(session):
    result = session.exec(in_shell(OPEN_DESCRIPTORS.format(pids="(1,)")))
    assert (result.returncode, result.output) == (0, "")
    result = session.run_python(OPEN_DESCRIPTORS.format(pids="(os.getppid(),)"))
    assert (result.returncode, result.output) == (0, "")


def test_the_server_cannot_be_traced_or_read(session):
    result = session.exec(in_shell(TRACE.format(pids="(1,)")))
    assert (result.returncode, result.output) == (0, "")


def test_python_code_sees_no_process_but_its_own(session):
    code = "import os\nprint(os.getpid(), os.getppid(), [n for n in os.listdir('/proc') if n.isdigit()])"
    assert session.run_python(code).output == "1 0 ['1']\n"


SEARCH_OWN_MEMORY = """
import gc, re, sys
seen, frame = [], sys._getframe()
while frame:
    seen.append(repr(frame.f_locals))
    frame = frame.f_back
seen += [repr(vars(o)) for o in gc.get_objects() if type(o).__name__ in ("Job", "Server")]
print(len(seen) > 3, [text for text in seen if re.search("SEC" "RET|[0-9a-f]{32}", text)])
"""


def test_a_fork_holds_no_code_output_or_id_of_other_calls(runner, session):
    async def main():
        run = session.sandbox.run_python
        talk = "print('SECRET', flush=True)\nimport time\ntime.sleep(0.3)"
        others = [asyncio.ensure_future(run(talk)) for _ in range(2)]
        await asyncio.sleep(0.1)
        calls = [run(talk), run(SEARCH_OWN_MEMORY), run(talk)]  # written at once, so read at once
        _, found, _ = await asyncio.gather(*calls)
        await asyncio.gather(*others)
        return found.output

    assert runner.run(main()) == "True []\n"


def test_frames_written_to_standard_output_are_just_output(session):
    code = "import os\nos.write(1, b'\\0\\0\\0\\2\\0\\0\\0\\0{}')"
    assert session.run_python(code).output == "\0\0\0\2\0\0\0\0{}"


def test_signals_to_the_server_do_nothing(session):
    session.exec(in_shell("import os\nfor s in [*range(1, 32), *range(34, 65)]: os.kill(1, s)"))
    session.exec("kill -KILL 1; kill -STOP 1; kill -KILL -1")
    session.run_python("import os, signal\nos.kill(-1, 9)")
    assert session.run_python("print('well')").output == "well\n"


def test_a_fork_bomb_ends_and_the_session_is_usable(session):
    result = session.exec("f() { f | f & }; f; sleep 60", timeout_s=0.5)
    assert result.timed_out
    assert session.run_python("print('before')").output == "before\n"
    session.sweep()
    assert session.exec("echo after").output == "after\n"
    bomb = session.run_python("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", timeout_s=0.3)
    assert bomb.timed_out
    assert session.exec("ls -d /proc/[0-9]* | wc -l").output.strip() in ("3", "4")  # server, shell and its pipe


def test_a_starved_server_is_a_lost_session_not_a_result(session):
    starve = "import resource\nresource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))"
    session.exec(in_shell(starve))
    with pytest.raises(SandboxLost, match="Too many open files"):
        session.run_python("print(1)")
    with pytest.raises(SandboxLost):
        session.exec("echo")


def test_a_killed_session_is_lost(runner, session):
    async def kill_it():
        call = asyncio.ensure_future(session.sandbox.exec("sleep 60"))
        await asyncio.sleep(0.1)
        os.kill(session.sandbox.pid, signal.SIGKILL)
        await call

    with pytest.raises(SandboxLost, match="its process ended"):
        runner.run(kill_it())
    assert not session.sandbox.alive


def test_a_frame_that_answers_no_request_loses_the_session(runner, session):
    async def forge():
        call = asyncio.ensure_future(session.sandbox.exec("sleep 60"))
        await asyncio.sleep(0.05)
        header = b'{"id": "guess", "returncode": 0}'
        frame = len(header).to_bytes(4, "big") + bytes(4) + header
        session.sandbox._channel.pipe_data_received(1, frame)
        await call

    with pytest.raises(SandboxLost, match="a frame that no request explains"):
        runner.run(forge())

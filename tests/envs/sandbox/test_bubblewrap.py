"""A session runs code as written, shows it nothing of the host, and holds it to its limits."""

import asyncio
import os
import shutil
import time

import pytest

from agentjax.envs.sandbox import SandboxError

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def python(session, code, **options):
    result = session.run_python(code, **options)
    return result.returncode, result.output


# What code does is what comes back.


def test_python_prints_its_output_and_exits_with_its_status(session):
    assert python(session, "import sys\nprint(6 * 7)\nsys.exit(3)") == (3, "42\n")


def test_a_traceback_holds_the_codes_own_frames_alone(session):
    code = "def half(x):\n    return x / 0\n\nhalf(1)\n"
    status, output = python(session, code)
    assert status == 1
    assert output.splitlines()[:5] == [
        "Traceback (most recent call last):",
        '  File "<python>", line 4, in <module>',
        "    half(1)",
        '  File "<python>", line 2, in half',
        "    return x / 0",
    ]
    assert output.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "exec_child" not in output


@pytest.mark.parametrize("code", ["x = (", "print(1)\n\0", "  x = 1"])
def test_code_that_does_not_compile_says_why(session, code):
    status, output = python(session, code)
    assert status == 1 and "Error" in output


def test_calls_share_files_but_no_variables(session):
    python(session, "x = 1\nopen('kept', 'w').write('text')")
    assert python(session, "print(open('kept').read(), 'x' in globals())") == (0, "text False\n")


def test_a_private_call_leaves_and_sees_no_files(session):
    code = "import os\nprint(os.listdir('/app') + os.listdir('/tmp'))\nopen('x', 'w')\nopen('/tmp/y', 'w')"
    for _ in range(2):
        assert python(session, code, private=True) == (0, "[]\n")
    assert session.exec("ls /app /tmp").output.split() == ["/app:", "/tmp:"]


def test_python_code_cannot_read_input_and_flushes_at_exit(session):
    code = "import atexit, threading, time\natexit.register(print, 'bye')\n"
    code += "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
    assert python(session, code) == (0, "thread\nbye\n")
    assert "EOFError" in python(session, "input()")[1]


def test_a_shell_command_takes_directory_and_variables(session):
    result = session.exec("pwd; echo $WHO; exit 7", cwd="/tmp", env={"WHO": "me"})
    assert (result.returncode, result.output) == (7, "/tmp\nme\n")
    assert session.exec("yes | head -n 1").output == "y\n"  # SIGPIPE is the default again


def test_death_by_a_signal_is_minus_its_number(session):
    assert session.exec("kill -TERM $$").returncode == -15
    assert session.run_python("import ctypes\nctypes.string_at(0)").returncode == -11


def test_output_that_is_not_utf8_is_replaced(session):
    assert session.exec(r"printf 'a\xff\xfeb'").output == "a\ufffd\ufffdb"
    assert python(session, "print('\\ud800')")[0] == 0


def test_files_go_in_and_out(session):
    data = bytes(range(256)) * 100
    session.put("folder/file.bin", data)
    assert session.get("/app/folder/file.bin", 1 << 20) == data
    assert session.exec("stat -c %s folder/file.bin").output == f"{len(data)}\n"
    with pytest.raises(ValueError, match="longer than max_bytes=10"):
        session.get("folder/file.bin", 10)
    with pytest.raises(FileNotFoundError):
        session.get("folder/other", 10)
    with pytest.raises(SandboxError, match="File too large|No space"):
        session.put("big", b"x" * (5 << 20))


@pytest.mark.parametrize("path", ["/etc/x", "../x", "/app/../usr/x", "/app", "/"])
def test_files_outside_the_writable_directories_are_refused(session, path):
    with pytest.raises(ValueError, match="must lie in one of /app, /tmp"):
        session.put(path, b"")
    with pytest.raises(ValueError, match="must lie in one of /app, /tmp"):
        session.get(path, 1)


# What code cannot see or touch.


def test_the_environment_is_empty_but_for_the_sandboxs_own(session):
    names = python(session, "import os\nprint(*sorted(os.environ))")[1].split()
    assert names == ["HOME", "LANG", "PATH", "PWD"]
    assert set(session.exec("env | cut -d= -f1").output.split()) <= {*names, "SHLVL", "_"}


def test_there_is_no_network(session):
    code = "import socket\ns = socket.socket()\ns.settimeout(2)\ns.connect(('{}', {}))"
    assert "Network is unreachable" in python(session, code.format("1.1.1.1", 53))[1]
    assert "Error" in python(session, code.format("127.0.0.1", 22))[1]
    interfaces = session.exec("tail -n +3 /proc/net/dev | cut -d: -f1").output.split()
    assert interfaces in (["lo"], [])


def test_host_files_and_processes_are_invisible(session):
    here = os.path.abspath(__file__)
    assert python(session, f"import os\nprint(os.path.exists({here!r}))")[1] == "False\n"
    assert session.exec("ls -d /root /home /var /etc/passwd /etc/shadow 2>/dev/null").output == ""
    assert len(session.exec("ls -d /proc/[0-9]*").output.split()) <= 4
    assert session.exec("hostname").output == "sandbox\n"


def test_only_the_writable_directories_can_be_written(session):
    for path in ("/x", "/usr/x", "/dev/x", "/etc/x", "/proc/x"):
        assert session.exec(f"touch {path}").returncode == 1, path
    for path in ("/app/x", "/tmp/x", "/dev/shm/x"):
        assert session.exec(f"touch {path}").returncode == 0, path


def test_code_runs_without_privilege(session):
    status = "import os\nprint(os.getuid(), *[l for l in open('/proc/self/status') if l[:3] in ('Cap', 'NoN')])"
    uid, *lines = python(session, status)[1].split(" ", 1)
    assert int(uid) != 0
    fields = dict(line.split(":\t") for line in lines[0].replace("\n ", "\n").strip().splitlines())
    assert fields["NoNewPrivs"] == "1"
    assert [int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0, 0, 0, 0]
    assert session.exec("mount -t tmpfs x /app").returncode != 0
    assert session.exec("unshare -Ur true").returncode != 0  # no way to capabilities of its own


def test_ctrl_c_in_the_terminal_does_not_reach_it(session):
    assert os.getpgid(session.sandbox.pid) != os.getpgid(0)


# Limits.


@pytest.mark.parametrize("run", ["exec", "run_python"])
def test_a_hang_is_killed_at_the_wall_clock_with_its_grandchildren(session, run):
    shell = "echo begun; (setsid sleep 300 &); setsid nohup sleep 300 & sleep 300"
    code = f"import subprocess\nsubprocess.run(['bash', '-c', {shell!r}])"
    began = time.monotonic()
    result = getattr(session, run)(shell if run == "exec" else code, timeout_s=0.3)
    assert (result.timed_out, result.returncode, result.output) == (True, -9, "begun\n")
    assert time.monotonic() - began < 2
    assert session.exec("pgrep -c sleep").output == "0\n"


@pytest.mark.parametrize("run", ["exec", "run_python"])
def test_a_flood_is_cut_at_the_cap_and_killed(session, run):
    source = "yes" if run == "exec" else "while True: print('y\\n' * 500)"
    result = getattr(session, run)(source, max_output=1000)
    assert result.output == "y\n" * 500
    assert result.returncode == -9 and not result.timed_out and result.truncated > 1 << 20


def test_output_beyond_the_cap_is_counted(session):
    result = session.run_python("print('x' * 9999)", max_output=100)
    assert (len(result.output), result.truncated, result.returncode) == (100, 9900, 0)


def test_a_memory_hog_fails_alone(session):
    status, output = python(session, "x = bytearray(1 << 30)")
    assert status == 1 and output.endswith("MemoryError\n")
    assert session.exec("python3 -c 'bytearray(1 << 30)' 2>&1 | tail -n 1").output == "MemoryError\n"


def test_files_and_directories_have_their_size_capped(session):
    assert "File too large" in python(session, "open('x', 'wb').write(bytes(2 << 20))")[1]
    session.exec("rm -f x; for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero > $i; done")
    assert int(session.exec("du -sb /app | cut -f1").output) <= 4 << 20
    for path in ("/tmp", "/dev/shm"):
        assert session.exec(f"df --output=size -B1 {path} | tail -1").output.strip() == str(4 << 20)


def test_cpu_time_is_capped(session):
    result = session.run_python("while True: pass")
    assert result.returncode == -9 and not result.timed_out


def test_processes_are_capped(session):
    code = "import subprocess\nkids = [subprocess.Popen(['sleep', '9']) for _ in range(40)]"
    assert "BlockingIOError" in python(session, code)[1]


def test_a_sweep_kills_daemons_and_deletes_files(session):
    session.exec("setsid sleep 300 > /dev/null 2>&1 & echo x > /tmp/x; mkdir -m 0 -p locked/a; ln -s / link")
    assert session.exec("pgrep -c sleep").output == "1\n"
    session.sweep()
    assert session.exec("pgrep -c sleep; ls -A /app /tmp /dev/shm").output.split() == [
        "0",
        "/app:",
        "/dev/shm:",
        "/tmp:",
    ]


def test_a_call_nobody_waits_for_is_killed(runner, session):
    async def give_up():
        call = asyncio.ensure_future(session.sandbox.run_python("import time\ntime.sleep(60)"))
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return await session.sandbox.exec("sleep 0.1; ls -d /proc/[0-9]* | wc -l")

    assert int(runner.run(give_up()).output) <= 4  # server, shell, ls, wc

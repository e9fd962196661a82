"""What a forked child does inside a sandbox session: a request goes in, output and an exit status come out.

The child confines itself (control pipes closed, capabilities dropped, rlimits set) and only then runs the payload.
Standard library only, like the server that forks it (`exec_server`).
"""

import ast  # noqa: F401  what `traceback` loads to place its carets
import atexit
import ctypes
import errno
import gc
import linecache
import math  # noqa: F401  what code imports most, loaded once here
import os
import resource
import signal
import stat
import sys
import traceback
import types

CODE_NAME = "<python>"  # file name of the code in tracebacks
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
CAPABILITY_VERSION_3 = 0x20080522
libc = ctypes.CDLL(None, use_errno=True)


def run_child(settings, request, payload, writer):
    """What a forked child does instead of returning: confine itself, run the payload, exit."""
    status = 126
    try:
        confine(settings, request, writer)
        status = RUN[request["kind"]](request, payload)
    except OSError as error:
        os.write(2, f"sandbox: {error}\n".encode())
    finally:
        os._exit(status)


def confine(settings, request, writer):
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    if request["kind"] == "python":
        mount("proc", "/proc", MS_NOEXEC)
    if request.get("private"):
        for path in settings["writable"]:
            mount_tmpfs(path, settings)
    drop_capabilities()
    for name, value in settings["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    os.chdir(request.get("cwd") or settings["writable"][0])


def drop_capabilities():
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)()))


def run_python(_, payload):
    """Run code as a fresh `__main__`; what it prints and its traceback are the output, as under `python script.py`."""
    gc.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stderr = sys.stdout
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    source = payload.decode()
    status = 0
    try:
        exec(compile(source, CODE_NAME, "exec"), main.__dict__)
    except SystemExit as error:
        status = exit_status(error.code)
    except BaseException as error:
        status = 1
        print_traceback(error, source)
    finally:
        wind_down()
    return status


def exit_status(code):
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code)
    return 1


def print_traceback(error, source):
    linecache.cache[CODE_NAME] = (len(source), None, source.splitlines(keepends=True), CODE_NAME)
    users_frames = error.__traceback__.tb_next
    traceback.print_exception(type(error), error, users_frames, file=sys.stdout)


def wind_down():
    """What an interpreter does at its end, and `os._exit` does not."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()


def run_shell(request, payload):
    for name in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, a shell's commands count on them
        signal.signal(name, signal.SIG_DFL)
    os.execve("/bin/bash", ["bash", "-c", payload.decode()], {**os.environ, **request["env"]})


def put_file(request, payload):
    """Write a file; the exit status is the errno, 0 for none."""
    try:
        os.makedirs(os.path.dirname(request["path"]), exist_ok=True)
        with open(request["path"], "wb") as file:
            file.write(payload)
    except OSError as error:
        return error.errno
    return 0


def get_file(request, _):
    """Print a file of at most `max_output` bytes; the exit status is the errno, 0 for none."""
    try:
        with open(request["path"], "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return errno.EINVAL
            data = file.read(request["max_output"] + 1)
    except OSError as error:
        return error.errno
    if len(data) > request["max_output"]:
        return errno.EFBIG
    with open(1, "wb", closefd=False) as output:
        output.write(data)
    return 0


RUN = {"python": run_python, "exec": run_shell, "put": put_file, "get": get_file}


def mount(kind, path, flags, options=""):
    check(libc.mount(kind.encode(), path.encode(), kind.encode(), MS_NOSUID | MS_NODEV | flags, options.encode()))


def mount_tmpfs(path, settings):
    mount("tmpfs", path, 0, f"mode=755,size={settings['tmpfs_bytes']}")


def check(returned):
    """The return value of a C call, or its errno as an `OSError`: the server then dies, and the session is replaced."""
    if returned < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return returned

"""The process inside a sandbox session: request frames come in on stdin, result frames go out on stdout.

It is process 1 of the session's namespaces, so no signal from inside can end it, and it is single-threaded, so a call
is one cheap fork of a warm interpreter. The host hands this source to the sandbox's own Python (`python3 -I -c`), which
may be another than the host's: standard library only, and `exec_child`, which says what a child does.

A frame is two big-endian uint32 lengths, a JSON header and raw bytes. A request's header holds `id`, `kind` and limits,
its bytes are the code, command or file; a result's header holds the `id` and how it ended, its bytes are the output.

Who is kept from what. Code runs as the session's uid, without capabilities and with rlimits. A child closes the control
pipes before anything else, and the server is not dumpable and holds capabilities that no child has: either alone keeps
its /proc/1/fd from being opened and itself from being traced. A child also drops what it inherited of other calls.
Python code gets its own process namespace, /proc and, if `private`, writable directories. So concurrent calls do not
see each other, and killing a call's first process kills all that it started.
"""

import ctypes
import gc
import json
import os
import resource
import select
import signal
import struct
import sys
import time

from agentjax.envs.sandbox.exec_child import check, libc, mount_tmpfs, run_child

LENGTHS = struct.Struct(">II")
FLOOD_BYTES = {"python": 1 << 20}  # a call that writes this much beyond its cap is killed: an endless `print` soon,
OTHER_FLOOD_BYTES = 16 << 20  # the log of a build late
CLONE_NEWNS, CLONE_NEWPID, SYS_CLONE3 = 0x00020000, 0x20000000, 435
MNT_DETACH, PR_SET_DUMPABLE = 2, 4
libc_holding_gil = ctypes.PyDLL(None, use_errno=True)


class Job:
    """One call in progress: its process, its output so far, and when it must be over."""

    def __init__(self, request, pid, pipe):
        self.id, self.pid, self.pipe = request["id"], pid, pipe
        self.cap = request["max_output"]
        self.deadline = time.monotonic() + request["timeout_s"]
        self.owns_tree = request["kind"] == "python"
        self.flood = FLOOD_BYTES.get(request["kind"], OTHER_FLOOD_BYTES)
        self.output, self.dropped = bytearray(), 0
        self.killed = self.timed_out = False

    def read(self):
        """Take up to 64 KiB from the pipe. Returns the bytes taken, or None if it is empty but open."""
        try:
            data = os.read(self.pipe, 1 << 16)
        except BlockingIOError:
            return None
        kept = data[: self.cap - len(self.output)]
        self.output += kept
        self.dropped += len(data) - len(kept)
        return len(data)

    def drain(self):
        """Take the rest once the process is gone. A daemon it left may go on writing, so this ends at the flood mark."""
        while self.dropped <= self.flood and self.read():
            pass


class Server:
    """Reads requests, forks a child for each, kills what overstays, sends results: one loop, no threads."""

    def __init__(self, settings):
        self.settings = settings
        self.epoll = select.epoll()
        self.jobs = {}  # pid -> Job
        self.handlers = {}  # descriptor -> what to do when it is ready
        self.inbox, self.outbox = bytearray(), bytearray()
        self.control_in, self.control_out = take_control_pipes()
        wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which process 1 ignores; Python's handler would raise
        self.watch(self.control_in, self.on_request)
        self.watch(wake, lambda: (os.read(wake, 4096), self.reap()))

    def watch(self, fd, handler, events=select.EPOLLIN):
        self.handlers[fd] = handler
        self.epoll.register(fd, events)

    def unwatch(self, fd):
        if self.handlers.pop(fd, None):
            self.epoll.unregister(fd)

    def run(self):
        while True:
            for fd, _ in self.epoll.poll(self.seconds_to_deadline()):
                handler = self.handlers.get(fd)
                if handler:
                    handler()
            self.expire()

    def seconds_to_deadline(self):
        deadlines = [job.deadline for job in self.jobs.values() if not job.killed]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def expire(self):
        now = time.monotonic()
        for job in list(self.jobs.values()):
            if job.deadline <= now and not job.killed:
                job.timed_out = True
                self.kill(job)

    def on_request(self):
        before = len(self.inbox)
        self.inbox += os.read(self.control_in, 1 << 20)
        if len(self.inbox) == before:
            os._exit(0)  # the host is gone; the kernel ends the namespace with its process 1
        while len(self.inbox) >= LENGTHS.size:
            header, body = LENGTHS.unpack_from(self.inbox)
            start = LENGTHS.size + header
            if len(self.inbox) < start + body:
                return
            request = json.loads(self.inbox[LENGTHS.size : start])
            payload = bytes(self.inbox[start : start + body])
            del self.inbox[: start + body]
            self.serve(request, payload)

    def serve(self, request, payload):
        if request["kind"] == "sweep":
            self.sweep()
            self.send({"id": request["id"]})
        elif request["kind"] == "cancel":
            for job in [job for job in self.jobs.values() if job.id == request["id"]]:
                self.kill(job)
        else:
            self.start(request, payload)

    def start(self, request, payload):
        reader, writer = os.pipe2(os.O_CLOEXEC)
        pid = clone(CLONE_NEWPID | CLONE_NEWNS if request["kind"] == "python" else 0)
        if pid == 0:
            self.forget(request)
            run_child(self.settings, request, payload, writer)
        os.close(writer)
        os.set_blocking(reader, False)
        job = self.jobs[pid] = Job(request, pid, reader)
        self.watch(reader, lambda: self.on_output(job))

    def forget(self, request):
        """In a child: drop the code and output of the other calls, and every id."""
        del request["id"]
        for store in (self.jobs, self.handlers, self.inbox, self.outbox):
            store.clear()

    def on_output(self, job):
        if job.read() == 0:
            self.unwatch(job.pipe)  # closed; the process may go on
        elif job.dropped > job.flood and not job.killed:
            self.kill(job)

    def kill(self, job):
        """Kill a call and all it started. A shell's children can leave its group, so every process goes with it."""
        job.killed = True
        kill_quietly(job.pid if job.owns_tree else -1)

    def reap(self):
        """Collect the children that ended, calls and orphans alike. Returns whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            job = self.jobs.pop(pid, None)
            if job:
                self.finish(job, os.waitstatus_to_exitcode(status))

    def finish(self, job, returncode):
        job.drain()
        self.unwatch(job.pipe)
        os.close(job.pipe)
        header = {"id": job.id, "returncode": returncode, "timed_out": job.timed_out, "truncated": job.dropped}
        self.send(header, job.output)

    def sweep(self):
        """Kill every process but this one, and replace the writable directories by empty ones."""
        while self.reap():
            kill_quietly(-1)
            time.sleep(0.0005)
        for path in self.settings["writable"]:
            check(libc.umount2(path.encode(), MNT_DETACH))
            mount_tmpfs(path, self.settings)

    def send(self, header, body=b""):
        head = json.dumps(header).encode()
        self.outbox += LENGTHS.pack(len(head), len(body)) + head + body
        self.on_writable()

    def on_writable(self):
        """Write without blocking, so that a busy host delays no deadline."""
        try:
            while self.outbox:
                del self.outbox[: os.write(self.control_out, self.outbox[: 1 << 16])]
        except BlockingIOError:
            if self.control_out not in self.handlers:
                self.watch(self.control_out, self.on_writable, select.EPOLLOUT)
        else:
            self.unwatch(self.control_out)


def take_control_pipes():
    """Move stdin and stdout to other descriptors, so that no child finds them at 0 and 1."""
    moved = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for fd in moved:
        os.set_blocking(fd, False)
    return moved


def clone(flags):
    """`os.fork` into new namespaces, by clone3: glibc has no wrapper, and its number is 435 on every architecture."""
    arguments = (ctypes.c_uint64 * 8)(flags, 0, 0, 0, signal.SIGCHLD)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc_holding_gil.syscall(ctypes.c_long(SYS_CLONE3), arguments, ctypes.c_size_t(64))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return check(pid)


def kill_quietly(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def within_hard_limits(rlimits):
    """The wanted rlimits, no higher than this process may set them."""
    hard = {name: resource.getrlimit(getattr(resource, name))[1] for name in rlimits}
    return {name: value if hard[name] < 0 else min(value, hard[name]) for name, value in rlimits.items()}


def harden():
    """Close what code could use against this process or the host's kernel."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # short of memory, the host ends sandboxes first
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))


def main(settings):
    settings["rlimits"] = within_hard_limits(settings["rlimits"])
    harden()
    check(libc.unshare(CLONE_NEWNS))  # a mount table of its own, in which it may unmount
    for path in settings["writable"]:
        mount_tmpfs(path, settings)
    os.environ["PWD"] = settings["writable"][0]
    server = Server(settings)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # by line
    server.send({"id": "ready"})
    gc.collect()
    gc.disable()
    gc.freeze()  # children must not copy this heap by collecting it
    server.run()

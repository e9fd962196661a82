"""The pool lends each sandbox to one lease or to many shared calls, replaces the dead, and leaves nothing behind."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

from agentjax.envs.sandbox import ExecResult, SandboxConfig, SandboxError, SandboxLost, SandboxUnavailable, make_pool
from agentjax.envs.sandbox import pool as pool_module

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
CONFIG = SandboxConfig(sessions=2, timeout_s=5.0)


@contextlib.asynccontextmanager
async def running_pool(config=CONFIG):
    pool = make_pool(config)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


async def bombard(pool, calls=32):
    return await asyncio.gather(*(pool.run_python(f"print({i} * 7)") for i in range(calls)))


@needs_bwrap
def test_32_concurrent_calls_each_get_their_own_answer():
    async def main():
        async with running_pool() as pool:
            results = await bombard(pool)
            return results, pool.counters

    results, counters = asyncio.run(main())
    assert results == [ExecResult(0, f"{i * 7}\n") for i in range(32)]
    assert (counters.calls, counters.timeouts, counters.lost, counters.leases) == (32, 0, 0, 0)


@needs_bwrap
def test_concurrent_calls_see_neither_files_nor_processes_of_each_other():
    code = (
        "import os, time\nopen('/tmp/mine', 'w').write('x')\ntime.sleep(0.2)\n"
        "print(os.listdir('/tmp'), os.listdir('/app'), [n for n in os.listdir('/proc') if n.isdigit()])"
    )

    async def main():
        async with running_pool(SandboxConfig(sessions=1)) as pool:
            return await asyncio.gather(*(pool.run_python(code) for _ in range(4)))

    assert {result.output for result in asyncio.run(main())} == {"['mine'] [] ['1']\n"}


@needs_bwrap
def test_one_call_that_hangs_does_not_disturb_the_others():
    async def main():
        async with running_pool(SandboxConfig(sessions=1)) as pool:
            hang = "import subprocess\nsubprocess.run(['setsid', 'sleep', '60'])"
            slow = "import time\ntime.sleep(0.5)\nprint('done')"
            calls = pool.run_python(hang, timeout_s=0.2), pool.run_python(slow)
            return await asyncio.gather(*calls), pool.counters.timeouts

    (hung, slept), timeouts = asyncio.run(main())
    assert hung.timed_out and slept == ExecResult(0, "done\n") and timeouts == 1


@needs_bwrap
def test_the_pool_serves_a_loop_in_another_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(use())))

    async def use():
        async with running_pool() as pool, pool.lease() as sandbox:
            return (await sandbox.exec("echo hi")).output, (await pool.run_python("print(1)")).output

    thread.start()
    thread.join(20)
    assert results == [("hi\n", "1\n")]


@needs_bwrap
def test_a_lease_is_swept_when_it_ends_and_refuses_calls_after():
    async def main():
        async with running_pool(SandboxConfig(sessions=1)) as pool:
            async with pool.lease() as first:
                await first.put("note", b"secret")
                await first.exec("setsid sleep 60 > /dev/null 2>&1 &")
            async with pool.lease() as second:
                seen = await second.exec("ls -A /app; pgrep -c sleep")
            with pytest.raises(SandboxError, match="lease is over"):
                await first.exec("echo")
            return seen.output, pool.counters.leases

    assert asyncio.run(main()) == ("0\n", 2)


@needs_bwrap
def test_a_killed_session_is_replaced():
    async def main():
        async with running_pool(SandboxConfig(sessions=1)) as pool:
            with pytest.raises(SandboxLost):
                async with pool.lease() as sandbox:
                    os.kill(sandbox._sandbox.pid, signal.SIGKILL)
                    await sandbox.exec("sleep 60")
            result = await pool.run_python("print('again')")
            return result.output, pool.counters.lost, pool.counters.replaced

    assert asyncio.run(main()) == ("again\n", 1, 1)


@needs_bwrap
def test_code_that_breaks_the_server_loses_its_session_alone():
    starve = "python3 -c 'import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))'"

    async def main():
        async with running_pool() as pool:
            async with pool.lease() as broken:
                await broken.exec(starve)
                with pytest.raises(SandboxLost):
                    await broken.exec("echo")
            results = await bombard(pool)
            while not pool.counters.replaced:
                await asyncio.sleep(0.01)
            return [r.output for r in results], pool.counters.lost, pool.counters.replaced

    outputs, lost, replaced = asyncio.run(main())
    assert outputs == [f"{i * 7}\n" for i in range(32)] and (lost, replaced) == (1, 1)


CHILD = """
import asyncio, sys
from agentjax.envs.sandbox import SandboxConfig, make_pool

async def main():
    pool = make_pool(SandboxConfig(sessions=2))
    await pool.start()
    async with pool.lease() as sandbox:
        await sandbox.exec("setsid sleep 300 > /dev/null 2>&1 &")
        print("up", flush=True)
        await pool.run_python("import time; time.sleep(300)", timeout_s=300)

asyncio.run(main())
"""


@needs_bwrap
def test_nothing_is_left_when_the_parent_is_killed(processes):
    parent = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent:
        assert parent.stdout.readline() == "up\n"
        inside = processes.below(parent.pid)
        assert len(inside) >= 5  # two times bubblewrap and its server, and the daemon
        parent.kill()
    assert processes.are_gone(inside)


@needs_bwrap
def test_nothing_is_left_after_close(processes):
    def temporary_files():
        return {name for name in os.listdir(tempfile.gettempdir()) if "agentjax" in name or "bwrap" in name}

    async def main():
        async with running_pool() as pool:
            async with pool.lease() as sandbox:
                await sandbox.exec("setsid sleep 300 > /dev/null 2>&1 &")
                inside = processes.below(os.getpid())
            assert len(inside) >= 5
        await pool.close()
        with pytest.raises(SandboxError, match="closed"):
            await pool.run_python("print(1)")
        return inside

    before = temporary_files()
    assert processes.are_gone(asyncio.run(main()))
    assert temporary_files() <= before


# Lending, with scripted sandboxes.


class ScriptedSandbox:
    """A sandbox whose calls end when told to, and which dies when told to."""

    workdir = "/app"

    def __init__(self):
        self.alive, self.calls, self.swept, self.may_end = True, 0, 0, asyncio.Event()

    async def run_python(self, code, **_):
        self.calls += 1
        await self.may_end.wait()
        if not self.alive:
            raise SandboxLost("gone")
        return ExecResult(0, code)

    async def sweep(self):
        self.swept += 1

    async def close(self):
        self.alive = False


def scripted_pool(sessions, start=None):
    made = []

    async def make(_):
        made.append(ScriptedSandbox())
        return made[-1]

    limits = pool_module.BACKENDS["unsandboxed_subprocess"].limits
    backend = pool_module.Backend(start or make, limits)
    return pool_module.SandboxPool(SandboxConfig(sessions=sessions, processes=8), backend), made


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def test_leases_are_given_in_the_order_asked_for():
    async def main():
        pool, _ = scripted_pool(1)
        await pool.start()
        order = []

        async def hold(name):
            async with pool.lease():
                order.append(name)
                await settle()

        await asyncio.gather(*(hold(name) for name in "abcd"))
        await pool.close()
        return order

    assert asyncio.run(main()) == list("abcd")


def test_a_lease_waits_for_the_shared_calls_of_its_sandbox_and_new_ones_go_elsewhere():
    async def main():
        pool, made = scripted_pool(2)
        await pool.start()
        first = [asyncio.ensure_future(pool.run_python("x")) for _ in range(2)]
        await settle()
        assert [sandbox.calls for sandbox in made] == [1, 1]
        lease = asyncio.ensure_future(pool.lease().__aenter__())
        await settle()
        assert not lease.done()
        more = asyncio.ensure_future(pool.run_python("y"))
        await settle()
        assert [sandbox.calls for sandbox in made] == [1, 2]
        made[0].may_end.set()
        await lease
        made[1].may_end.set()
        await asyncio.gather(*first, more)
        await pool.close()

    asyncio.run(main())


def test_a_session_takes_no_more_shared_calls_than_its_processes_allow():
    async def main():
        pool, made = scripted_pool(1)
        await pool.start()
        calls = [asyncio.ensure_future(pool.run_python("x")) for _ in range(5)]
        await settle()
        assert made[0].calls == 2  # a quarter of 8 processes
        made[0].may_end.set()
        await asyncio.gather(*calls)
        await pool.close()

    asyncio.run(main())


def test_cancelled_waiters_leave_the_queue_and_hold_nothing():
    async def main():
        pool, made = scripted_pool(1)
        await pool.start()
        async with pool.lease():
            waiting = [asyncio.ensure_future(pool.run_python("x")), asyncio.ensure_future(pool.lease().__aenter__())]
            await settle()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        made[0].may_end.set()
        assert (await pool.run_python("y")).output == "y"
        async with pool.lease():
            pass
        await pool.close()

    asyncio.run(main())


def test_waiters_are_told_when_no_session_can_be_started(monkeypatch):
    monkeypatch.setattr(pool_module, "RESTART_WAITS_S", (0.0, 0.0))
    made = []

    async def start_once(_):
        if made:
            raise SandboxUnavailable("no more")
        made.append(ScriptedSandbox())
        return made[0]

    async def main():
        pool, _ = scripted_pool(1, start_once)
        await pool.start()
        made[0].alive = False
        with pytest.raises(SandboxUnavailable, match="could be started: no more"):
            await pool.run_python("x")
        with pytest.raises(SandboxUnavailable):
            async with pool.lease():
                pass
        await pool.close()
        return pool.counters

    counters = asyncio.run(main())
    assert (counters.lost, counters.replaced) == (1, 0)


def test_a_pool_that_cannot_start_leaves_nothing_running():
    made = []

    async def fail_second(_):
        made.append(ScriptedSandbox())
        if len(made) == 2:
            raise SandboxUnavailable("refused")
        return made[-1]

    async def main():
        pool, _ = scripted_pool(3, fail_second)
        with pytest.raises(SandboxUnavailable, match="refused"):
            await pool.start()

    asyncio.run(main())
    assert [sandbox.alive for sandbox in made] == [False, True, False]


def test_a_pool_must_be_started():
    async def main():
        with pytest.raises(SandboxError, match="not started"):
            await make_pool(CONFIG).run_python("print(1)")

    asyncio.run(main())


def test_an_unknown_backend_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="sandbox.backend .*got 'bublewrap'. Did you mean 'bubblewrap'"):
        make_pool(SandboxConfig(backend="bublewrap"))


def test_what_is_enforced_and_what_is_not_is_said():
    said = str(make_pool(SandboxConfig(sessions=4, processes=64, memory_bytes=512 << 20)).limits)
    assert said.startswith("sandbox: bubblewrap\n  holds: ")
    assert "does not hold: the memory of all processes together (at worst 128 GiB)" in said
    assert "anything else" in str(make_pool(SandboxConfig(backend="unsandboxed_subprocess")).limits)

"""The backend without isolation answers as a sandbox does, and runs only when asked for by name."""

import asyncio
import os

import pytest

from agentjax.envs.sandbox import SandboxConfig, SandboxError, SandboxLost, make_pool
from agentjax.envs.sandbox.unsandboxed import UnsandboxedSubprocess

CONFIG = SandboxConfig(backend="unsandboxed_subprocess", sessions=1, timeout_s=5.0)


@pytest.fixture
def run():
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def sandbox(run):
    sandbox = run(UnsandboxedSubprocess.start(CONFIG))
    yield sandbox
    run(sandbox.close())


def test_the_default_is_isolated():
    assert SandboxConfig().backend == "bubblewrap"


def test_the_pool_lends_it_when_asked(run):
    async def main():
        pool = make_pool(CONFIG)
        await pool.start()
        async with pool.lease() as sandbox:
            shell = await sandbox.exec("echo $A", env={"A": "b"})
        python = await pool.run_python("import sys\nprint(2**70)\nsys.exit(4)")
        await pool.close()
        return shell, python

    shell, python = run(main())
    assert (shell.output, python.output, python.returncode) == ("b\n", f"{2**70}\n", 4)


def test_hangs_and_floods_are_killed(run, sandbox):
    hung = run(sandbox.exec("sleep 60 & sleep 60", timeout_s=0.2))
    assert hung.timed_out and hung.returncode == -9
    flood = run(sandbox.exec("yes", max_output=100))
    assert flood.output == "y\n" * 50 and flood.returncode == -9 and flood.truncated > 1 << 20


def test_output_that_is_not_utf8_is_replaced(run, sandbox):
    assert run(sandbox.exec(r"printf 'a\xffb'")).output == "a\ufffdb"


def test_files_stay_in_its_directory(run, sandbox):
    run(sandbox.put("a/b", b"data"))
    assert run(sandbox.get("a/b", 4)) == b"data"
    assert run(sandbox.exec("cat a/b")).output == "data"
    with pytest.raises(ValueError, match="max_bytes=3"):
        run(sandbox.get("a/b", 3))
    with pytest.raises(ValueError, match="path must lie in"):
        run(sandbox.put("../x", b""))
    with pytest.raises(FileNotFoundError):
        run(sandbox.get("c", 1))


def test_the_programs_own_variables_are_kept_from_it(run, sandbox, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "secret")
    assert "secret" not in run(sandbox.exec("env")).output


def test_close_leaves_nothing(run, sandbox):
    run(sandbox.put("a", b""))
    run(sandbox.sweep())
    assert os.listdir(sandbox.workdir) == []
    run(sandbox.close())
    assert not os.path.exists(sandbox.workdir)
    with pytest.raises(SandboxLost):
        run(sandbox.exec("echo"))
    assert issubclass(SandboxLost, SandboxError)

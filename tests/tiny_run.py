"""Whole runs as commands: start them, stop them, kill them, and read what they left."""

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
_SHARED = Path(tempfile.mkdtemp(prefix="agentjax-tests-"))
atexit.register(shutil.rmtree, _SHARED, ignore_errors=True)
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "PYTHONUNBUFFERED": "1",
    "JAX_COMPILATION_CACHE_DIR": str(_SHARED / "programs"),  # compiled by the first run, loaded by the others
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
PATIENCE_S = 240


def command(folder: Path, verb: str = "train", **changes: object) -> list[str]:
    """A command on the tiny run; `env__name="x"` overrides env.name."""
    overrides = [f"--config.{name.replace('__', '.')}={value}" for name, value in changes.items()]
    config = ROOT / "tests" / "tiny.py"
    return [sys.executable, "-m", "agentjax", verb, f"--config={config}", f"--config.run_dir={folder}", *overrides]


def start(argv: list[str], *, errors: int = subprocess.STDOUT) -> subprocess.Popen:
    """Start a command on one device, its output in a pipe."""
    environment = os.environ | _ENVIRONMENT
    return subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8", env=environment, cwd=ROOT
    )


def run(argv: list[str], status: int = 0, *, errors: int = subprocess.STDOUT) -> str:
    """Run a command to its end, and see that no process of its is left; what it printed."""
    process = start(argv, errors=errors)
    children: set[tuple[int, str]] = set()
    began, output = time.monotonic(), None
    while output is None and time.monotonic() - began < PATIENCE_S:
        children.update(descendants(process.pid))
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, _ = process.communicate(timeout=0.5)
    assert process.returncode == status, output
    assert gone(list(children))
    return output or ""


def signal_when(argv: list[str], number: int, due: Callable[[], bool]) -> tuple[int, str]:
    """Send a signal to a command as soon as something holds, and see that no process of its survives it.

    Returns:
        The status, and what was printed.
    """
    process = start(argv)
    began = time.monotonic()
    while not due() and process.poll() is None and time.monotonic() - began < PATIENCE_S:
        time.sleep(0.005)
    children = descendants(process.pid)
    assert process.poll() is None and children, "it ended, or had no sandbox, before it could be disturbed"
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert gone(children)
    return process.returncode, output


def descendants(pid: int) -> list[tuple[int, str]]:
    """Pid and starting time of every process below one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            _, _, fields = (folder / "stat").read_text().rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        if int(fields.split()[1]) == pid:
            child = int(folder.name)
            found += [(child, fields.split()[19]), *descendants(child)]
    return found


def gone(processes: list[tuple[int, str]], patience_s: float = 10) -> bool:
    """Whether all of them end soon."""
    until = time.monotonic() + patience_s
    while (alive := [p for p in processes if _alive(*p)]) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive


def _alive(pid: int, started: str) -> bool:
    try:
        _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return False
    return fields.split()[0] != "Z" and fields.split()[19] == started


def kill_when(argv: list[str], due: Callable[[], bool]) -> None:
    """Kill a command as soon as something holds."""
    assert signal_when(argv, signal.SIGKILL, due)[0] == -signal.SIGKILL


def records(folder: Path, phase: str | None = None) -> list[dict]:
    """What the run measured, without wall times and speeds."""
    file = folder / "metrics.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    chosen = [record for record in found if phase in (None, record["phase"])]
    return [{k: v for k, v in record.items() if not k.startswith(("time/", "perf/"))} for record in chosen]


def saved_steps(folder: Path) -> list[int]:
    """Numbers of the complete checkpoints."""
    return sorted(int(step.name) for step in (folder / "checkpoints").glob("[0-9]*") if step.name.isdigit())


def newest_params(folder: Path) -> list[np.ndarray]:
    """The leaves of the parameters last saved."""
    import jax
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(folder.resolve() / "checkpoints") as manager:
        saved = manager.restore(saved_steps(folder)[-1], args=ocp.args.Composite(params=ocp.args.StandardRestore()))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(saved["params"])]


@functools.cache
def whole_run() -> tuple[Path, str]:
    """A tiny run that nobody disturbed, to compare others with; its folder and what it printed. Leave it as it is."""
    folder = _SHARED / "whole"
    return folder, run(command(folder))

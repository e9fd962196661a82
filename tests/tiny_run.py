"""A whole run in a few seconds: the command line of a tiny experiment, and what is left of a run to compare."""

import atexit
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

ROOT = Path(__file__).parent.parent
TINY = {
    "env.name": "tests.tiny_envs:Parity",
    "monitor.live": "off",
    "monitor.tensorboard": "false",
    "model.num_layers": 1,
    "model.d_model": 32,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.head_dim": 16,
    "model.d_ff": 64,
    "model.vocab_size": 1024,
    "tokenizer.vocab_size": 1024,
    "tokenizer.transcripts": 128,
    "sft.steps": 12,
    "sft.optimizer.learning_rate": 1e-2,
    "sft.optimizer.warmup_steps": 0,
    "sft.batch_size": 8,
    "sft.demonstrations": 32,
    "sft.optimizer.decay_steps": 30,
    "train.steps": 5,
    "train.prompts_per_step": 2,
    "train.eval_every": 2,
    "algo.group_size": 4,
    "eval.tasks": 4,
    "rollout.slots": 8,
    "rollout.prefill_rows": 4,
    "checkpoint.every": 1,
    "sandbox.sessions": 2,
}


def command(folder: Path, verb: str = "train", **changes: object) -> list[str]:
    """The command of a tiny run; `env__name="x"` overrides env.name."""
    settings = TINY | {name.replace("__", "."): value for name, value in changes.items()}
    overrides = [f"--config.{name}={value}" for name, value in settings.items()]
    return [sys.executable, "-m", "agentjax", verb, "--config=quickstart", f"--config.run_dir={folder}", *overrides]


_PROGRAMS = tempfile.mkdtemp(prefix="agentjax-tests-")  # compiled by the first run, loaded by the others
atexit.register(shutil.rmtree, _PROGRAMS, ignore_errors=True)
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "PYTHONUNBUFFERED": "1",
    "JAX_COMPILATION_CACHE_DIR": _PROGRAMS,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}


def start(argv: list[str]) -> subprocess.Popen:
    """Start a command on one device, its output in a pipe."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(argv, **pipes, env=os.environ | _ENVIRONMENT, cwd=ROOT)


def run(argv: list[str], status: int = 0) -> str:
    """Run a command to its end; what it printed."""
    process = start(argv)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == status, output
    return output


def stop_when(argv: list[str], number: int, due: Callable[[], bool]) -> tuple[int, str]:
    """Send a signal to a command as soon as something holds; its status and what it printed."""
    process = start(argv)
    while not due() and process.poll() is None:
        time.sleep(0.01)
    if process.poll() is None:
        process.send_signal(number)
    output, _ = process.communicate(timeout=240)
    return process.returncode, output


def kill_when(argv: list[str], due: Callable[[], bool]) -> None:
    """Kill a command as soon as something holds."""
    stop_when(argv, signal.SIGKILL, due)


def records(folder: Path) -> list[dict]:
    """What the run measured, without wall times and speeds."""
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "perf/"))} for line in lines]

"""Resume: a run that is killed or stopped at any moment goes on as if it had not been, to the last bit."""

import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.tiny_run import command, kill_when, newest_params, records, run, saved_steps, signal_when, whole_run


@pytest.fixture
def whole() -> Path:
    return whole_run()[0]


def a_while_after(folder: Path, phase: str, count: int, rng: random.Random) -> Callable[[], bool]:
    """Holds at a random moment after so many records of a phase."""

    def due() -> bool:
        if len(records(folder, phase)) < count:
            return False
        time.sleep(rng.uniform(0.0, 0.3))
        return True

    return due


def in_the_middle_of_saving(folder: Path, after: int) -> Callable[[], bool]:
    """Holds when a checkpoint is half written, and older ones are there."""
    return lambda: (
        max(saved_steps(folder), default=0) >= after and any((folder / "checkpoints").glob("*orbax-checkpoint-tmp*"))
    )


def assert_same_run(folder: Path, whole: Path) -> None:
    got, want = records(folder), records(whole)
    assert [(r["phase"], r["step"]) for r in got] == [(r["phase"], r["step"]) for r in want]
    for mine, theirs in zip(got, want, strict=True):
        assert mine == theirs
    assert saved_steps(folder) == saved_steps(whole)
    for a, b in zip(newest_params(folder), newest_params(whole), strict=True):
        np.testing.assert_array_equal(a, b)


def test_killed_at_any_moment_it_ends_in_the_same_bits(whole, tmp_path):
    folder, rng = tmp_path / "run", random.Random(0)
    moments = (
        a_while_after(folder, "sft", 5, rng),
        in_the_middle_of_saving(folder, after=0),
        a_while_after(folder, "grpo", 1, rng),
        in_the_middle_of_saving(folder, after=42),
    )
    for moment in moments:
        kill_when(command(folder), moment)
    run(command(folder))
    assert_same_run(folder, whole)


def test_asked_to_stop_it_saves_exits_0_and_goes_on(whole, tmp_path):
    folder, rng = tmp_path / "run", random.Random(1)
    moments = (("sft", 5, signal.SIGTERM), ("eval", 1, signal.SIGINT), ("grpo", 2, signal.SIGTERM))
    for phase, count, number in moments:
        status, output = signal_when(command(folder), number, a_while_after(folder, phase, count, rng))
        assert status == 0 and "the same command goes on" in output, output
        assert saved_steps(folder)
    run(command(folder))
    assert_same_run(folder, whole)


def test_the_cold_start_alone_can_be_gone_on_from(whole, tmp_path):
    folder = tmp_path / "run"
    assert "SFT done" in run(command(folder, verb="sft"))
    assert saved_steps(folder) == [40]
    run(command(folder))
    assert_same_run(folder, whole)
    assert "agentjax train` goes on" in run(command(folder, verb="sft"))


def test_a_finished_run_is_left_as_it_is(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    target = records(whole, "eval")[-1]["eval/success"]
    output = run(command(folder, train__steps=9, train__target=target))
    assert f"held-out success reached {target:g}" in output
    assert_same_run(folder, whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"model__d_ff": 32}, "d_ff was 64 and is 32 now"), ({"sft__steps": 30}, "has had 40 updates of SFT")],
)
def test_another_experiment_is_refused(whole, tmp_path, change, message):
    folder = shutil.copytree(whole, tmp_path / "run")
    output = run(command(folder, **change), status=2)
    assert message in output and "Traceback" not in output
    assert_same_run(folder, whole)


def test_a_new_start_leaves_nothing_of_the_old_run(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    fresh = {"seed": 1, "sft__steps": 2, "train__steps": 1, "checkpoint__resume": "false"}
    run(command(folder, **fresh))
    assert [(r["phase"], r["step"]) for r in records(folder)] == [
        ("sft", 1), ("sft", 2), ("eval", 0), ("grpo", 1), ("eval", 1)
    ]  # fmt: skip
    assert saved_steps(folder) == [2, 3]


def test_partial_rollouts_cross_updates_and_survive_a_kill(tmp_path):
    folder = tmp_path / "run"
    options = {"rollout__in_flight_groups": 4, "sft__steps": 2, "train__steps": 6, "train__eval_every": 0}
    kill_when(command(folder, **options), lambda: len(records(folder, "grpo")) >= 2)
    run(command(folder, **options))
    grpo = records(folder, "grpo")
    assert [r["step"] for r in grpo] == [1, 2, 3, 4, 5, 6]
    assert max(r.get("policy/age_max", 0) for r in grpo) > 0

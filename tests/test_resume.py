"""Resume: a run that is killed or stopped at any moment goes on as if it had not been, to the last bit."""

import random
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from agentjax.checkpoint import Checkpoints
from agentjax.config import load
from tests.tiny_run import command, kill_when, records, run, stop_when

LAST = 11  # updates of both phases


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(command(folder))
    return folder


def final_params(folder: Path) -> list[np.ndarray]:
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(folder.resolve() / "checkpoints") as manager:
        restored = manager.restore(LAST, args=ocp.args.Composite(params=ocp.args.StandardRestore()))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(restored["params"])]


def assert_same_run(folder: Path, whole: Path) -> None:
    got, want = records(folder), records(whole)
    assert [(r["phase"], r["step"]) for r in got] == [(r["phase"], r["step"]) for r in want]
    for mine, theirs in zip(got, want, strict=True):
        assert mine == theirs
    for a, b in zip(final_params(folder), final_params(whole), strict=True):
        np.testing.assert_array_equal(a, b)


def sandboxes_of(folder: Path) -> int:
    """Sandbox processes alive on this machine that a run could have left behind."""
    listed = subprocess.run(["pgrep", "-fc", "bwrap --unshare-user"], capture_output=True, text=True)
    return int(listed.stdout or 0)


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_moments_it_ends_in_the_same_bits(whole, tmp_path, seed):
    folder, rng = tmp_path / "run", random.Random(seed)
    for _ in range(3):
        recorded = len(records(folder)) + rng.randint(1, 4)
        wait_s = rng.uniform(0.0, 0.4)

        def due(recorded=recorded, wait_s=wait_s):
            if len(records(folder)) < recorded:
                return False
            time.sleep(wait_s)
            return True

        kill_when(command(folder), due)
    run(command(folder))
    assert_same_run(folder, whole)


@pytest.mark.parametrize(("phase", "number"), [("sft", signal.SIGTERM), ("grpo", signal.SIGINT)])
def test_asked_to_stop_it_saves_exits_0_and_goes_on(whole, tmp_path, phase, number):
    folder = tmp_path / "run"
    due = lambda: sum(record["phase"] == phase for record in records(folder)) >= 2
    status, output = stop_when(command(folder), number, due)
    assert status == 0, output
    assert "the same command goes on" in output
    assert len(records(folder)) < LAST
    run(command(folder))
    assert_same_run(folder, whole)


def test_a_finished_run_is_left_as_it_is(whole):
    before = records(whole)
    assert "all steps done" in run(command(whole))
    assert records(whole) == before


def test_another_model_is_refused_and_a_new_start_is_possible(whole, tmp_path):
    folder = tmp_path / "run"
    run(command(folder, train__steps=1))
    output = run(command(folder, model__d_ff=32), status=2)
    assert "d_ff was 64 and is 32 now" in output
    run(command(folder, model__d_ff=32, train__steps=1, checkpoint__resume="false"))
    assert [r["phase"] for r in records(folder)].count("grpo") == 1


def test_partial_rollouts_cross_updates_and_survive_a_kill(tmp_path):
    folder = tmp_path / "run"
    options = {"rollout__in_flight_groups": 3, "train__steps": 4}
    kill_when(command(folder, **options), lambda: sum(r["phase"] == "grpo" for r in records(folder)) >= 2)
    run(command(folder, **options))
    grpo = [r for r in records(folder) if r["phase"] == "grpo"]
    assert [r["step"] for r in grpo] == [1, 2, 3, 4]


def test_the_checkpoint_holds_the_reference_that_kl_is_taken_to(tmp_path):
    folder = tmp_path / "run"
    options = {"algo__kl_coef": 0.1, "algo__minibatches": 2, "train__steps": 3}
    kill_when(command(folder, **options), lambda: sum(r["phase"] == "grpo" for r in records(folder)) >= 1)
    run(command(folder, **options))
    grpo = [r for r in records(folder) if r["phase"] == "grpo"]
    assert [r["step"] for r in grpo] == [1, 2, 3]


def test_checkpoints_of_the_config_can_be_opened(whole):
    config = load("quickstart")
    with Checkpoints(whole / "checkpoints", keep=config.checkpoint.keep, identity={}) as checkpoints:
        assert checkpoints.latest() == LAST

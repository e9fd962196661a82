"""Evaluation: pass@k is a mean over all draws, and a checkpoint answers the same however it is asked."""

import itertools
import json
import subprocess

import numpy as np
import pytest

from agentjax.evaluate import pass_at_k
from tests.tiny_run import command, records, run, whole_run


@pytest.mark.parametrize("n", [1, 2, 5])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_success(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        outcomes = [True] * c + [False] * (n - c)
        drawn = np.mean([any(draw) for draw in itertools.combinations(outcomes, k)])
        assert pass_at_k(n, c, k) == pytest.approx(drawn)


@pytest.mark.parametrize(("n", "c", "k"), [(2, 1, 3), (2, 3, 1), (2, -1, 1), (2, 1, 0)])
def test_pass_at_k_refuses_what_cannot_be(n, c, k):
    with pytest.raises(ValueError, match="1 <= k <= n"):
        pass_at_k(n, c, k)


def test_a_run_is_evaluated_when_due():
    evaluations = records(whole_run()[0], "eval")
    assert [r["step"] for r in evaluations] == [0, 2, 4]
    assert all(0 <= r["eval/pass_at_1"] <= r["eval/pass_at_2"] <= 1 for r in evaluations)


def evaluated(folder, *options: str) -> dict:
    """The only thing on standard output."""
    argv = [*command(folder)[:3], "eval", f"--run={folder}", "--json=-", *options]
    return json.loads(run(argv, errors=subprocess.DEVNULL))


def contents(folder) -> dict:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_checkpoint_is_evaluated_as_in_training_and_nothing_is_touched():
    folder, _ = whole_run()
    before = contents(folder)
    result = evaluated(folder)
    assert contents(folder) == before
    last = records(folder, "eval")[-1]
    assert result.pop("checkpoint") == 44
    assert result == {name: value for name, value in last.items() if name.startswith("eval/")}


def test_the_tool_can_be_broken():
    folder, _ = whole_run()
    whole, broken = (
        evaluated(folder, f"--config.env.args.broken_tool={answer}", "--config.eval.tasks=16", "--step=3")
        for answer in ("false", "true")
    )
    assert whole["eval/rollout_tool_calls"] > 0
    assert broken["eval/rollout_tool_errors_mean"] == broken["eval/rollout_tool_calls_mean"] > 0
    assert broken["checkpoint"] == 43


def test_a_folder_without_a_run_is_refused_and_stays_empty(tmp_path):
    argv = [part if part != "train" else "eval" for part in command(tmp_path)]
    output = run(argv, status=2)
    assert "train first" in output and "Traceback" not in output
    assert not list(tmp_path.iterdir())

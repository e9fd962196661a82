"""The loops: what a whole run leaves behind, who gets credit, and what happens when learning goes wrong."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from agentjax.config import load
from agentjax.envs.api import Task
from agentjax.rollout.groups import Group
from agentjax.rollout.pending import PendingGroup
from agentjax.rollout.progress import InFlight
from agentjax.train import credit, sampled_by, without_replayable
from agentjax.trajectory import Segment, Source, StopReason, Trajectory
from agentjax.trajectory_file import check, read_trajectories
from tests.tiny_run import command, newest_params, records, run, saved_steps, whole_run

TASK = Task(id="t", group="t", seed=0, data={})


def said(ids, version=0) -> Segment:
    ids = np.asarray(ids, np.int32)
    return Segment(Source.POLICY, ids, np.full(len(ids), -0.5, np.float32), np.full(len(ids), version, np.int32))


def row(sample: int, reward: float | None, stop=StopReason.DONE, version=0) -> Trajectory:
    segments = (Segment(Source.PROMPT, np.array([1, 2], np.int32)), said([3, 4], version))
    return Trajectory("t", "0/t", sample, sample, segments, (), reward, stop)


def group(index: int, rewards) -> Group:
    rows = (row(i, r, StopReason.DONE if r is not None else StopReason.TIMEOUT) for i, r in enumerate(rewards))
    return Group(index, TASK, tuple(rows))


@pytest.fixture
def config():
    config = load("quickstart")
    return dataclasses.replace(config, algo=dataclasses.replace(config.algo, group_size=4))


def test_groups_of_equal_rewards_and_faults_are_left_out(config):
    rows, credits = credit([group(0, [1, 1, 1, 1]), group(1, [1, 0, None, 0]), group(2, [0, 0, 0, None])], config)
    assert [(r.sample_index, r.reward) for r in rows] == [(0, 1), (1, 0), (3, 0)]
    np.testing.assert_allclose(credits, np.array([2, -1, -1]) / 3 / np.std([1, 0, 0]), rtol=1e-4)


def test_episodes_of_the_present_weights_are_sampled_again_and_others_kept():
    def progress(sample, version):
        segments = (Segment(Source.PROMPT, np.array([1], np.int32)), said([2], version))
        return InFlight(task_id="t", group_id="0/t", sample_index=sample, seed=0, segments=segments)

    pending = PendingGroup(0, TASK, 2, in_flight=(progress(0, version=3), progress(1, version=2)))
    fresh, kept = without_replayable(pending, version=3).in_flight
    assert fresh.segments == () and len(kept.segments) == 2


def test_a_step_is_on_policy_if_every_token_is():
    rows = [row(0, 1.0, version=3), row(1, 0.0, version=2)]
    assert sampled_by(3, rows[:1]) and not sampled_by(3, rows)


@pytest.fixture
def whole():
    return whole_run()


def test_a_run_leaves_everything_a_person_looks_for(whole):
    folder, output = whole
    for name in ("config.json", "metrics.jsonl", "curves.png", "summary.json", "tokenizer.json", "checkpoints"):
        assert (folder / name).exists()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 4 and summary["sft_steps"] == 40 and summary["episodes"] == 4 * 8
    assert summary["compiles_after_warmup"] == 0
    assert {"success_before", "success_after", "train_seconds", "tool_calls", "tokens_per_s"} <= set(summary)
    assert "sandbox: bubblewrap" in output and "held-out success" in output


def test_what_was_sampled_is_kept_whole_and_agrees_with_the_metrics(whole):
    folder, _ = whole
    for record in records(folder, "grpo"):
        rows = read_trajectories(folder / "trajectories" / f"grpo_{record['step']:06d}.jsonl")
        for trajectory in rows:
            check(trajectory)
        assert np.mean([r.reward for r in rows]) == pytest.approx(record["reward/mean"])
        assert sum(r.loss_mask.sum() for r in rows) == record["rollout/tokens"]


def test_sampler_and_trainer_agree_at_every_step(whole):
    learnt = [r for r in records(whole[0], "grpo") if "policy/mismatch" in r]
    assert learnt and all(r["policy/mismatch"] <= 1e-4 and r["policy/mismatch_max"] <= 1e-3 for r in learnt)


def test_the_policy_is_held_near_the_cold_start(whole):
    learnt = [r for r in records(whole[0], "grpo") if "policy/kl_ref" in r]
    # Two updates a step: in the first of all the policy is its own reference, then it moves away from it.
    assert 0 <= learnt[0]["policy/kl_ref"] < learnt[-1]["policy/kl_ref"] < 1


def test_learning_that_blows_up_is_skipped_said_and_stopped(whole, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "run")
    wild = {"optimizer__learning_rate": 1e38, "train__steps": 9, "train__eval_every": 0, "learner__max_skipped": 2}
    output = run(command(folder, **wild), status=1)
    assert "The update was skipped" in output and "updates in a row" in output and "Traceback" not in output
    assert saved_steps(folder) == saved_steps(whole[0])
    for a, b in zip(newest_params(folder), newest_params(whole[0]), strict=True):
        np.testing.assert_array_equal(a, b)
    run(command(folder, train__steps=5))
    assert [r["step"] for r in records(folder, "grpo")] == [1, 2, 3, 4, 5]

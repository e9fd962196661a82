"""The loops: what a whole run leaves behind, who gets credit, and what happens when learning goes wrong."""

import dataclasses
import json

import numpy as np
import pytest

from agentjax.config import load
from agentjax.envs.api import Task
from agentjax.evaluate import pass_at_k
from agentjax.rollout.groups import Group
from agentjax.rollout.pending import PendingGroup
from agentjax.rollout.progress import InFlight
from agentjax.train import credit, without_replayable
from agentjax.trajectory import Segment, Source, StopReason, Trajectory
from tests.tiny_run import command, records, run

TASK = Task(id="t", group="t", seed=0, data={})


def said(ids, version=0) -> Segment:
    ids = np.asarray(ids, np.int32)
    return Segment(Source.POLICY, ids, np.full(len(ids), -0.5, np.float32), np.full(len(ids), version, np.int32))


def row(sample: int, reward: float | None, stop=StopReason.DONE) -> Trajectory:
    segments = (Segment(Source.PROMPT, np.array([1, 2], np.int32)), said([3, 4]))
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


def test_pass_at_k_is_the_chance_that_a_draw_of_k_holds_a_success():
    rng = np.random.default_rng(0)
    outcomes = np.array([1, 1, 0, 0, 0, 0, 0])
    drawn = np.mean([outcomes[rng.permutation(7)[:3]].any() for _ in range(20_000)])
    assert pass_at_k(7, 2, 3) == pytest.approx(drawn, abs=0.01)
    assert pass_at_k(4, 0, 2) == 0 and pass_at_k(4, 3, 2) == 1
    with pytest.raises(ValueError, match="1 <= k <= n"):
        pass_at_k(2, 1, 3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train") / "run"
    output = run(command(folder, eval__samples=4, eval__k=2, train__eval_every=2))
    return folder, output


def test_a_run_leaves_everything_a_person_looks_for(whole):
    folder, output = whole
    for name in ("config.json", "metrics.jsonl", "curves.png", "summary.json", "tokenizer.json", "checkpoints"):
        assert (folder / name).exists()
    assert list((folder / "trajectories").iterdir())
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 5 and summary["sft_steps"] == 6 and summary["episodes"] == 5 * 16
    assert summary["compiles_after_warmup"] == 0
    assert {"success_before", "success_after", "train_seconds", "tool_calls", "tokens_per_s"} <= set(summary)
    assert "sandbox: bubblewrap" in output and "held-out success" in output


def test_sampler_and_trainer_agree_at_every_step(whole):
    grpo = [r for r in records(whole[0]) if r["phase"] == "grpo" and "policy/mismatch" in r]
    assert all(r["policy/mismatch"] <= 1e-4 and r["policy/mismatch_max"] <= 1e-3 for r in grpo)


def test_evaluation_counts_pass_at_k(whole):
    evals = [r for r in records(whole[0]) if r["phase"] == "eval"]
    assert [r["step"] for r in evals] == [0, 2, 4, 5]
    assert all(0 <= r["eval/pass_at_1"] <= r["eval/pass_at_2"] <= 1 for r in evals)


def test_a_checkpoint_can_be_evaluated_with_and_without_its_tool(whole):
    folder, _ = whole
    argv = [*command(folder)[:3], "eval", f"--run={folder}", "--json=-"]
    result = json.loads(run(argv))
    last = [r for r in records(folder) if r["phase"] == "eval"][-1]
    assert result["eval/success"] == last["eval/success"] and result["checkpoint"] == 11
    broken = json.loads(run([*argv, "--config.env.args.broken_tool=true", "--config.env.args.chain_fraction=0.2"]))
    assert broken["eval/success"] == 0.0


def test_learning_that_blows_up_is_skipped_said_and_stopped(tmp_path):
    folder = tmp_path / "run"
    change = {"sft.optimizer.name": "adamw", "sft.optimizer.learning_rate": 1e38, "sft.optimizer.warmup_steps": 0}
    argv = command(folder, **{name.replace(".", "__"): value for name, value in change.items()})
    output = run(argv, status=1)
    assert "The update was skipped" in output and "5 updates in a row" in output and "Traceback" not in output
    assert not list((folder / "checkpoints").glob("[0-9]*"))

"""Episode metrics, against numbers counted by hand."""

import dataclasses

import pytest

from agentjax.monitor import episode_metrics
from agentjax.trajectory import StopReason
from tests.monitor.made import calculate, guess

FAULT = guess(None, sample=9, stop=StopReason.SANDBOX_LOST)


def test_rewards_are_told_apart_by_whether_a_tool_was_called():
    metrics = episode_metrics([guess(0.0), guess(0.5, sample=1), calculate(1.0, sample=2), calculate(0.0, sample=3)])
    assert metrics["reward/mean"] == 0.375
    assert (metrics["reward/without_tool"], metrics["reward/with_tool"]) == (0.25, 0.5)
    assert (metrics["rollout/tool_use"], metrics["rollout/tool_calls"], metrics["rollout/tool_calls_mean"]) == (
        0.5,
        2,
        0.5,
    )


def test_lengths_count_what_was_sampled():
    metrics = episode_metrics([guess(), calculate(sample=1, ok=False)])
    sampled = [len("400<|im_end|>"), len('<tool_call>\n{"name": "python"}\n</tool_call><|im_end|>408<|im_end|>')]
    assert (metrics["rollout/tokens"], metrics["rollout/tokens_mean"]) == (sum(sampled), sum(sampled) / 2)
    assert (metrics["rollout/turns_mean"], metrics["rollout/tool_errors_mean"]) == (1.5, 0.5)


def test_a_fault_is_counted_and_changes_no_mean():
    without, having = (
        episode_metrics([guess(), calculate(sample=1)]),
        episode_metrics([guess(), calculate(sample=1), FAULT]),
    )
    assert having["rollout/episodes"] == 3 and having["stop/sandbox_lost"] == pytest.approx(1 / 3)
    kept = {name for name in without if not name.startswith("stop/")} - {"rollout/episodes"}
    assert {name: having[name] for name in kept} == {name: without[name] for name in kept}


def test_branches_of_an_episode_are_one_episode():
    first, second = calculate(1.0), dataclasses.replace(guess(1.0), branch=1)
    metrics = episode_metrics([second, first])
    assert (metrics["rollout/episodes"], metrics["rollout/turns_mean"], metrics["rollout/tool_calls_mean"]) == (1, 3, 1)


def test_reward_parts_are_averaged():
    rows = [guess(reward_parts={"format": 1.0}), guess(sample=1, reward_parts={"exact": 1.0})]
    metrics = episode_metrics(rows)
    assert (metrics["reward/format"], metrics["reward/exact"]) == (0.5, 0.5)


def test_nothing_played_gives_no_means():
    assert episode_metrics([]) == {"rollout/episodes": 0.0}
    assert "reward/mean" not in episode_metrics([FAULT])


def test_shares_of_stop_reasons_sum_to_one():
    metrics = episode_metrics([guess(), FAULT, guess(sample=2, stop=StopReason.MAX_TURNS)])
    assert sum(value for name, value in metrics.items() if name.startswith("stop/")) == pytest.approx(1)

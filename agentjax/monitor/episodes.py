"""Episode metrics: the trajectories of a step in, named numbers out."""

from collections.abc import Sequence

import numpy as np

from agentjax.monitor import names
from agentjax.trajectory import Source, StopReason, Trajectory


def episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What a batch of episodes did. Branches of one episode count as one; its faults count under `stop/` alone.

    Returns:
        Means over the episodes without a fault, each left out where there is none to average:
        `reward/mean`, `reward/std`, `reward/<part>`; `reward/with_tool`, `reward/without_tool`: the mean reward of those
        that called a tool, and of those that did not.
        `rollout/turns_mean`, `rollout/tool_calls_mean`, `rollout/tool_errors_mean`, `rollout/tokens_mean` (sampled),
        `rollout/total_tokens_mean` (of its rows: prompt and observations too), `rollout/tool_use` (share with a call).
        Sums: `rollout/episodes` (with faults), `rollout/tool_calls`, `rollout/tokens` (sampled).
        `stop/<reason>`: share of all episodes that ended so, for every reason.
    """
    episodes = _by_episode(trajectories)
    played = [rows for rows in episodes if not rows[-1].stop.is_fault]
    return {names.EPISODES: float(len(episodes))} | _stops(episodes) | _rewards(played) | _lengths(played)


def _by_episode(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    episodes: dict[tuple[str, int], list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda t: t.branch):
        episodes.setdefault((trajectory.group_id, trajectory.sample_index), []).append(trajectory)
    return list(episodes.values())


def _stops(episodes: list[list[Trajectory]]) -> dict[str, float]:
    return {
        f"stop/{reason}": _mean([rows[-1].stop is reason for rows in episodes]) for reason in StopReason if episodes
    }


def _rewards(played: list[list[Trajectory]]) -> dict[str, float]:
    if not played:
        return {}
    rewards = np.array([rows[-1].reward for rows in played], np.float64)
    called = np.array([_tool_calls(rows) > 0 for rows in played])
    metrics: dict[str, float] = {names.REWARD: rewards.mean(), "reward/std": rewards.std()}
    if called.any():
        metrics[names.REWARD_WITH_TOOL] = rewards[called].mean()
    if not called.all():
        metrics[names.REWARD_WITHOUT_TOOL] = rewards[~called].mean()
    for part in sorted({part for rows in played for part in rows[-1].reward_parts}):
        metrics[f"reward/{part}"] = _mean([rows[-1].reward_parts.get(part, 0.0) for rows in played])
    return {name: float(value) for name, value in metrics.items()}


def _lengths(played: list[list[Trajectory]]) -> dict[str, float]:
    if not played:
        return {}
    calls = [_tool_calls(rows) for rows in played]
    errors = [sum(not use.ok for row in rows for turn in row.turns for use in turn.tools) for rows in played]
    sampled = [sum(len(s.ids) for row in rows for s in row.segments if s.source is Source.POLICY) for rows in played]
    return {
        names.TURNS_MEAN: _mean([sum(len(row.turns) for row in rows) for rows in played]),
        names.TOOL_CALLS_MEAN: _mean(calls),
        "rollout/tool_errors_mean": _mean(errors),
        names.TOOL_USE: _mean([count > 0 for count in calls]),
        names.TOKENS_MEAN: _mean(sampled),
        names.TOTAL_TOKENS_MEAN: _mean([sum(len(s.ids) for row in rows for s in row.segments) for rows in played]),
        names.TOOL_CALLS: float(sum(calls)),
        names.TOKENS: float(sum(sampled)),
    }


def _tool_calls(rows: list[Trajectory]) -> int:
    return sum(len(turn.tools) for row in rows for turn in row.turns)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))

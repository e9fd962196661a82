"""Rollout metrics: trajectories in, what went wrong and where the time went out.

Rewards, lengths and stop reasons are `agentjax.monitor.episodes`.
"""

from collections.abc import Sequence

from agentjax.trajectory import Trajectory


def rollout_metrics(rows: Sequence[Trajectory]) -> dict[str, float]:
    """Count faults and seconds.

    Args:
        rows: The trajectories of a step, all branches.

    Returns:
        Sums over the episodes: `rollout/faults`, `rollout/retries`, `rollout/replays_diverged`,
        `rollout/start_mismatches`, `rollout/close_failures`, `rollout/bad_turns` (malformed),
        `rollout/cut_turns` (at their token budget), `time/model_s` and `time/tool_s` (waits, episode by episode).
    """
    episodes = [row for row in rows if row.branch == 0]
    turns = [turn for row in rows for turn in row.turns]

    def total(name: str) -> float:
        return float(sum(row.metrics.get(name, 0.0) for row in episodes))

    return {
        "rollout/faults": float(sum(row.stop.is_fault for row in episodes)),
        "rollout/retries": total("retries"),
        "rollout/replays_diverged": total("replay_diverged"),
        "rollout/start_mismatches": total("start_mismatch"),
        "rollout/close_failures": total("close_failed"),
        "rollout/bad_turns": float(sum(turn.parse_error is not None for turn in turns)),
        "rollout/cut_turns": float(sum(turn.finish == "length" for turn in turns)),
        "time/model_s": sum(turn.model_s for turn in turns),
        "time/tool_s": sum(turn.tool_s for turn in turns),
    }

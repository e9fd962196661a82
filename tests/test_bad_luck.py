"""Bad luck: whatever goes wrong in an episode is recorded and counted, the others go on, and nothing is left behind."""

from collections import defaultdict
from pathlib import Path

import pytest

from agentjax.trajectory import StopReason
from agentjax.trajectory_file import read_trajectories
from tests.tiny_envs import LUCK
from tests.tiny_run import command, records, run


@pytest.fixture(scope="module")
def unlucky(tmp_path_factory) -> Path:
    """A run of one update in which every sample of a group meets the same misfortune."""
    folder = tmp_path_factory.mktemp("bad") / "run"
    options = {
        "env__name": "tests.tiny_envs:BadLuck",
        "env__args__timeout_s": 0.5,
        "env__args__max_code_chars": 80,
        "budget__step_s": 5,
        "rollout__retries": 1,
        "train__steps": 1,
        "train__prompts_per_step": len(LUCK),
        "algo__group_size": 2,
        "eval__samples": 0,
    }
    run(command(folder, **options))
    return folder


@pytest.fixture(scope="module")
def episodes(unlucky):
    """The trajectories by what went wrong in them."""
    found = defaultdict(list)
    for row in read_trajectories(unlucky / "trajectories" / "grpo_000001.jsonl"):
        found[LUCK[int(row.task_id.rpartition("/")[2]) % len(LUCK)]].append(row)
    return found


@pytest.mark.parametrize(
    ("luck", "shown"),
    [
        ("hangs", "took longer than 0.5 s"),
        ("floods", "error: "),
        ("forks", "error: "),
        ("dies", "error: exit status"),
        ("kills all it can", "error: "),
        ("is no JSON", "not JSON"),
        ("has no such tool", "there is no tool 'pyhton'"),
        ("is no text", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_tool_that_misbehaves_is_an_observation(episodes, luck, shown):
    assert len(episodes[luck]) == 2
    for row in episodes[luck]:
        assert not row.stop.is_fault and row.reward is not None
        results = [use.result for turn in row.turns for use in turn.tools]
        assert not results or shown in results[0]  # none, if no turn of the policy could be read


@pytest.mark.parametrize(
    ("luck", "stop", "said"),
    [
        ("raises", StopReason.ENV_CRASH, "a bug of the environment"),
        ("blocks", StopReason.TIMEOUT, "budget.step_s"),
        ("loses its scorer", StopReason.ENV_CRASH, "the judge is down"),
    ],
)
def test_a_fault_has_no_reward(episodes, luck, stop, said):
    unlucky = [row for row in episodes[luck] if row.stop.is_fault]
    assert unlucky or all(turn.parse_error for row in episodes[luck] for turn in row.turns)
    for row in unlucky:
        assert (row.stop, row.reward) == (stop, None) and said in row.error


def test_everything_is_counted(unlucky, episodes):
    (record,) = records(unlucky, "grpo")
    rows = [row for of_luck in episodes.values() for row in of_luck]
    assert record["rollout/episodes"] == len(rows) == 2 * len(LUCK)
    assert record["rollout/faults"] == sum(row.stop.is_fault for row in rows) > 0
    assert record["rollout/retries"] >= record["rollout/faults"]
    for reason in StopReason:
        assert record[f"stop/{reason}"] == pytest.approx(sum(row.stop is reason for row in rows) / len(rows))

"""Laws of task streams: resumable, sharded, disjoint, the same for the same seed."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentjax.envs.api import Budget
from agentjax.envs.tasks import DrawnTasks, ListedTasks, first_tasks, task_stream

LISTED = ListedTasks("list", [{"n": n} for n in range(10)], [{"n": -1}, {"n": -2}, {"n": -3}])
DRAWN = DrawnTasks("drawn", lambda rng: {"n": int(rng.integers(1000))})


def take(stream, count):
    return list(itertools.islice(stream, count))


@pytest.mark.parametrize("source", [LISTED, DRAWN])
@given(seed=st.integers(0, 2**40), before=st.integers(0, 25))
@settings(max_examples=10, deadline=None)
def test_a_restored_stream_goes_on_where_its_state_was_taken(source, seed, before):
    stream = task_stream(source, "train", seed=seed)
    take(stream, before)
    state = json.loads(json.dumps(stream.get_state()))
    rest = take(stream, 15)
    resumed = task_stream(source, "train", seed=seed)
    resumed.set_state(state)
    assert take(resumed, 15) == rest


@pytest.mark.parametrize("source", [LISTED, DRAWN])
def test_the_seed_decides_the_stream(source):
    first, again, other = (take(task_stream(source, "train", seed=seed), 30) for seed in (1, 1, 2))
    assert first == again
    assert [task.data for task in first] != [task.data for task in other]


@pytest.mark.parametrize("source", [LISTED, DRAWN])
@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_shards_deal_out_the_stream(source, processes):
    whole = take(task_stream(source, "train", seed=3), 42)
    shards = [
        take(task_stream(source, "train", seed=3, shard=(process, processes)), 42 // processes)
        for process in range(processes)
    ]
    assert [task for tasks in zip(*shards, strict=True) for task in tasks] == whole


def test_each_pass_over_a_list_sees_every_task_once_in_a_new_order():
    names = [task.data["n"] for task in take(task_stream(LISTED, "train", seed=0), 30)]
    passes = [names[:10], names[10:20], names[20:]]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_without_shuffle_and_repeat_a_list_is_itself():
    stream = task_stream(LISTED, "eval", seed=0, shuffle=False, repeat=False)
    assert [task.data["n"] for task in stream] == [-1, -2, -3]
    assert [task.data["n"] for task in first_tasks(LISTED, "eval", 2, seed=0)] == [-1, -2]


def test_splits_of_drawn_tasks_share_nothing_whatever_the_seeds():
    train, held_out = (
        {task.data["n"] for seed in range(5) for task in take(task_stream(DRAWN, split, seed=seed), 400)}
        for split in ("train", "eval")
    )
    assert not train & held_out
    assert len(held_out) == pytest.approx(1000 / 8, rel=0.3), "eval_fraction of all tasks is held out"


def test_every_task_has_its_own_seed():
    assert len({task.seed for task in take(task_stream(DRAWN, "train", seed=0), 200)}) == 200


def test_the_budget_reaches_the_tasks():
    budget = Budget(max_turns=3)
    assert next(task_stream(DRAWN, "train", seed=0, budget=budget)).budget == budget
    assert first_tasks(LISTED, "eval", 1, seed=0, budget=budget)[0].budget == budget


def test_shards_of_the_first_tasks_partition_them():
    whole = first_tasks(DRAWN, "eval", 7, seed=0)
    shards = [first_tasks(DRAWN, "eval", 7, seed=0, shard=(process, 3)) for process in range(3)]
    assert sorted(task.id for shard in shards for task in shard) == sorted(task.id for task in whole)


def test_lists_must_have_tasks_and_differ():
    with pytest.raises(ValueError, match="'eval' split has no tasks"):
        ListedTasks("list", [{"n": 1}], [])
    with pytest.raises(ValueError, match="eval task 1 is train task 0"):
        ListedTasks("list", [{"n": 1}], [{"n": 2}, {"n": 1}])


def test_impossible_requests_say_so():
    with pytest.raises(ValueError, match="no split 'test'.*'train', 'eval'"):
        task_stream(DRAWN, "test", seed=0)
    with pytest.raises(ValueError, match=r"shard.*\(2, 2\)"):
        task_stream(DRAWN, "train", seed=0, shard=(2, 2))
    with pytest.raises(ValueError, match="asked for 4 'eval' tasks, but there are 3"):
        first_tasks(LISTED, "eval", 4, seed=0)
    with pytest.raises(ValueError, match="only: no 'eval' task"):
        DrawnTasks("only", lambda rng: {}, eval_fraction=0.0).task("eval", 0, 0)

import asyncio
import dataclasses
import json

import numpy as np
import pytest

from agentjax.envs.api import EnvError, EnvFault, Message, Reset
from agentjax.rollout.groups import Rollouts
from agentjax.rollout.metrics import rollout_metrics
from agentjax.rollout.pending import PendingGroup
from agentjax.rollout.request import SamplingParams
from agentjax.rollout.samples import trajectory_seed
from agentjax.trajectory import Segment, Source, StopReason
from agentjax.trajectory_file import check
from tests.rollout.scripted import (
    BROKEN,
    FORMAT,
    HANG,
    SPEC,
    Factory,
    ScriptedEnv,
    ScriptedSampler,
    ids_of,
    make_task,
    observe,
    over,
)

LOST = EnvFault(EnvError("sandbox", "gone", retryable=True, mask=True))
HOPELESS = EnvFault(EnvError("bug", "always", retryable=False, mask=True))


def good(_=0):
    return ScriptedEnv(steps=(observe("x"), over(1.0)))


def rollouts(make=good, sampler=None, **settings):
    factory = make if isinstance(make, Factory) else Factory(make)
    defaults = dict(seed=5, sampling=SamplingParams(), max_concurrent=100, retries=1, fingerprint="f")
    return Rollouts(factory, FORMAT, sampler or ScriptedSampler("a<|im_end|>"), **defaults | settings)


def collect(groups=2, size=3, **settings):
    """Play some groups to the end."""

    async def run():
        async with rollouts(**settings) as playing:
            for number in range(groups):
                playing.submit(make_task(f"g{number}"), size)
            return await playing.wait(groups)

    return asyncio.run(run())


def test_seeds_are_stable_distinct_uint32():
    assert trajectory_seed(0, 0, 0) == 1586971723
    seeds = {trajectory_seed(run, group, sample) for run in range(3) for group in range(20) for sample in range(20)}
    assert len(seeds) == 1200 and all(0 <= seed < 2**32 for seed in seeds)


def test_a_group_has_its_task_and_its_samples_in_order():
    groups = collect()
    assert [group.index for group in groups] == [0, 1] and [group.task.group for group in groups] == ["g0", "g1"]
    for group in groups:
        rows = group.trajectories
        for row in rows:
            check(row)
        assert [row.sample_index for row in rows] == [0, 1, 2]
        assert [row.seed for row in rows] == [trajectory_seed(5, group.index, i) for i in range(3)]
        assert len({row.group_id for row in rows}) == 1 and rows[0].group_id.endswith(group.task.group)


def test_order_of_completion_does_not_show():
    class Shuffled(ScriptedSampler):
        async def sample(self, request):
            await asyncio.sleep(request.trajectory % 13 / 1000)
            return await super().sample(request)

    def tokens(sampler):
        rows = [row for group in collect(3, 4, sampler=sampler) for row in group.trajectories]
        return [(row.seed, row.tokens.tolist(), row.sampler_logprobs.tolist()) for row in rows]

    assert tokens(Shuffled("a<|im_end|>")) == tokens(ScriptedSampler("a<|im_end|>"))


def test_wait_gives_what_is_complete_and_keeps_the_rest():
    class FirstGroupStuck(ScriptedSampler):
        gate = None

        async def sample(self, request):
            if request.group.startswith("0/"):
                await self.gate.wait()
            return await super().sample(request)

    async def run():
        sampler = FirstGroupStuck("a<|im_end|>")
        sampler.gate = asyncio.Event()
        async with rollouts(sampler=sampler) as playing:
            for number in range(3):
                playing.submit(make_task(f"g{number}"), 2)
            early = await playing.wait(2)
            sampler.gate.set()
            return [group.index for group in early + await playing.wait(1)], playing.open

    assert asyncio.run(run()) == ([1, 2, 0], 0)


def test_waiting_for_more_groups_than_there_are_says_so():
    async def run():
        async with rollouts() as playing:
            playing.submit(make_task(), 2)
            await playing.wait(2)

    with pytest.raises(ValueError, match="only 1 groups are open"):
        asyncio.run(run())


@pytest.mark.parametrize(("concurrency", "most"), [(0, 3), (2, 2)])
def test_no_more_episodes_at_a_time_than_allowed(concurrency, most):
    live, seen = set(), []

    class Counted(ScriptedEnv):
        async def reset(self, task):
            live.add(id(self))
            seen.append(len(live))
            await asyncio.sleep(0.002)
            return await super().reset(task)

        async def close(self):
            live.discard(id(self))

    factory = Factory(lambda _: Counted(steps=(over(),)), dataclasses.replace(SPEC, concurrency=concurrency))
    collect(3, 4, make=factory, max_concurrent=3)
    assert max(seen) == most and not live


# Faults and retries


def test_a_fault_is_played_again_from_scratch_with_the_same_seed():
    envs = [ScriptedEnv(steps=(observe("x"), LOST)), good()]
    factory, sampler = Factory(envs), ScriptedSampler("a<|im_end|>")
    (group,) = collect(1, 1, make=factory, sampler=sampler)
    (row,) = group.trajectories
    assert (row.stop, row.reward, row.metrics["retries"]) == (StopReason.DONE, 1.0, 1.0)
    assert len({request.trajectory for request in sampler.requests}) == 1
    assert len(sampler.requests[2].ids) == len(sampler.requests[0].ids)
    assert all(env.calls[-1] == "close" for env in envs)


@pytest.mark.parametrize(("failure", "plays"), [(LOST, 3), (HOPELESS, 1), (HANG, 3), (ValueError("bug"), 3)])
def test_a_fault_that_stays_has_no_reward_and_leaves_the_others_alone(failure, plays):
    def broken_or_good(number):
        return ScriptedEnv(steps=(failure,)) if number == 0 or number > 2 else good()

    async def run():
        factory = Factory(broken_or_good)
        async with rollouts(factory, retries=2) as playing:
            playing.submit(make_task(step_s=0.05), 3)
            return len(factory.made), await playing.wait(1), factory

    _, (group,), factory = asyncio.run(run())
    faults = [row for row in group.trajectories if row.stop.is_fault]
    assert [row.sample_index for row in faults] == [0] and faults[0].reward is None
    assert faults[0].metrics.get("retries", 0) == plays - 1 and len(factory.made) == 2 + plays
    assert [row.reward for row in group.trajectories[1:]] == [1.0, 1.0]


def test_samples_that_start_differently_are_faults():
    def make(number):
        question = "another" if number == 1 else "question"
        return ScriptedEnv(resets=(Reset((Message("user", question),)),), steps=(over(1.0),))

    (group,) = collect(1, 3, make=make)
    assert [row.reward for row in group.trajectories] == [1.0, None, 1.0]
    odd = group.trajectories[1]
    assert odd.stop is StopReason.ENV_CRASH and "differs from that of sample 0" in odd.error
    assert rollout_metrics(group.trajectories)["rollout/start_mismatches"] == 1


def test_an_error_of_the_sampler_stops_everything_and_closes_every_environment():
    class Dies(ScriptedSampler):
        async def sample(self, request):
            if len(self.requests) == 4:
                raise RuntimeError("engine is down")
            return await super().sample(request)

    async def run():
        factory = Factory(lambda _: ScriptedEnv())
        playing = rollouts(factory, Dies("a<|im_end|>"))
        playing.submit(make_task(), 3)
        with pytest.raises(RuntimeError, match="engine is down"):
            await playing.wait(1)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        return factory, others

    factory, others = asyncio.run(run())
    assert not others and all(env.calls[-1] == "close" for env in factory.made)


def test_close_stops_episodes_and_closes_their_environments():
    async def run():
        factory = Factory(lambda _: ScriptedEnv(steps=(HANG,)))
        async with rollouts(factory) as playing:
            playing.submit(make_task(), 4)
            while not all("step" in env.calls for env in factory.made) or len(factory.made) < 4:
                await asyncio.sleep(0.001)
        return factory, asyncio.all_tasks() - {asyncio.current_task()}

    factory, others = asyncio.run(run())
    assert not others and [env.calls[-1] for env in factory.made] == ["close"] * 4


def test_waiting_after_close_says_so_instead_of_hanging():
    async def run():
        async with rollouts(lambda _: ScriptedEnv(steps=(HANG,))) as playing:
            playing.submit(make_task(), 1)
        await playing.wait(1)

    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(run())


# Resume


class Gated(ScriptedSampler):
    """Stops answering after some turns."""

    def __init__(self, *texts, turns):
        super().__init__(*texts)
        self.turns = turns

    async def sample(self, request):
        if len(self.requests) >= self.turns:
            await asyncio.sleep(60)
        return await super().sample(request)


def interrupted(turns, under_way=None):
    """Pending groups, through JSON, of two groups that were stopped after some turns."""

    async def run():
        sampler = Gated("a<|im_end|>", turns=turns)
        async with rollouts(sampler=sampler, max_concurrent=3) as playing:
            for number in range(2):
                playing.submit(make_task(f"g{number}"), 2)
            while len(sampler.requests) < turns:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            return playing.pending() if under_way is None else playing.pending(under_way)

    return [PendingGroup.from_json(json.loads(json.dumps(pending.to_json()))) for pending in asyncio.run(run())]


def go_on(pending, sampler, **settings):
    async def run():
        async with rollouts(sampler=sampler, **settings) as playing:
            for group in pending:
                playing.resume(group)
            return await playing.wait(len(pending)), playing.next_index

    return asyncio.run(run())


@pytest.mark.parametrize("turns", [0, 1, 3, 5, 7, 8])
def test_a_restart_changes_no_token_and_samples_nothing_twice(turns):
    want = collect(2, 2)
    pending = interrupted(turns)
    sampler = ScriptedSampler("a<|im_end|>")
    groups, next_index = go_on(pending, sampler)
    assert len(sampler.requests) == 8 - turns and next_index == 2
    for group, wanted in zip(groups, want, strict=True):
        assert group.task == wanted.task and group.index == wanted.index
        for row, wanted_row in zip(group.trajectories, wanted.trajectories, strict=True):
            assert row.tokens.tolist() == wanted_row.tokens.tolist()
            assert row.sampler_logprobs.tobytes() == wanted_row.sampler_logprobs.tobytes()
            assert row.info == wanted_row.info


def test_tokens_under_way_go_into_the_record():
    begun = Segment(Source.POLICY, ids_of("a"), np.array([-0.5], np.float32), np.array([2], np.int32))
    pending = interrupted(1, under_way=lambda request: begun)
    sampler = ScriptedSampler("a<|im_end|>")
    go_on(pending, sampler)
    assert sum(request.sampled == tuple(begun.ids.tolist()) for request in sampler.requests) == 3


def test_an_environment_that_answers_otherwise_after_a_restart_is_played_afresh_and_counted():
    pending = interrupted(7)
    sampler = ScriptedSampler("a<|im_end|>")
    groups, _ = go_on(pending, sampler, make=lambda _: ScriptedEnv(steps=(observe("changed"), over(1.0))))
    rows = [row for group in groups for row in group.trajectories]
    assert [row.reward for row in rows] == [1.0] * 4
    assert rollout_metrics(rows)["rollout/replays_diverged"] == 1


def test_a_group_with_missing_samples_cannot_be_resumed():
    with pytest.raises(ValueError, match="group 0 cannot be resumed"):
        go_on([dataclasses.replace(interrupted(0)[0], group_size=3)], ScriptedSampler("a"))


def test_metrics_count_what_happened():
    envs = [ScriptedEnv(steps=(LOST,)), ScriptedEnv(steps=(over(1.0),), closes=(ValueError("x"),))]
    (group,) = collect(1, 1, make=Factory(envs), sampler=ScriptedSampler(BROKEN, "a<|im_end|>"))
    metrics = rollout_metrics(group.trajectories)
    assert metrics["rollout/retries"] == 1 and metrics["rollout/faults"] == 0
    assert metrics["rollout/close_failures"] == 1 and metrics["time/tool_s"] >= 0
    assert metrics["time/model_s"] == 0.5 * len(group.trajectories[0].turns)

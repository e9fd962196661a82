import asyncio
import json
import time

import numpy as np
import pytest

from agentjax.envs.api import EnvError, EnvFault, Message, Reset, Score, Step, ToolCall, ToolResult
from agentjax.envs.sandbox import SandboxLost
from agentjax.rollout.conversation import branch_seed
from agentjax.rollout.episodes import MAX_BAD_CALLS, Episode, run_episode
from agentjax.rollout.progress import Diverged, InFlight
from agentjax.rollout.request import SamplingParams
from agentjax.trajectory import Segment, Source, StopReason
from tests.rollout.scripted import (
    BROKEN,
    FORMAT,
    HANG,
    BlockingEnv,
    ScriptedEnv,
    ScriptedSampler,
    call,
    ids_of,
    make_task,
    observe,
    over,
    sampled_turn,
    text_of,
)

SEED = 4_000_000_000
WHO = InFlight(task_id="g/0", group_id="0/g", sample_index=2, seed=SEED)


def play(env, sampler, recorded=(), **budget):
    """Play one episode; the rows."""
    return asyncio.run(
        run_episode(
            env,
            make_task(**budget),
            FORMAT,
            sampler,
            group_id="0/g",
            sample_index=2,
            seed=SEED,
            sampling=SamplingParams(),
            fingerprint="f",
            recorded=recorded,
        )
    )


def play_one(env, sampler, **budget):
    (row,) = play(env, sampler, **budget)
    return row


def episode(env, sampler, progress=WHO, **budget):
    return Episode(
        lambda: env, make_task(**budget), FORMAT, sampler, progress, sampling=SamplingParams(), fingerprint="f"
    )


# The stream


def test_stream_is_prompt_then_sampled_ids_and_deltas_as_they_were():
    env = ScriptedEnv(steps=(observe("42"), over(1.0)))
    row = play_one(env, ScriptedSampler(call(), "42<|im_end|>"))
    last = ids_of(call())[-1]
    delta = [segment.ids for segment in FORMAT.delta([Message("tool", "42")], int(last))]
    want = [FORMAT.prompt([Message("user", "question")]), ids_of(call()), *delta, ids_of("42<|im_end|>")]
    np.testing.assert_array_equal(row.tokens, np.concatenate(want))
    assert [text_of(s.ids) for s in row.segments if s.source is Source.POLICY] == [call(), "42<|im_end|>"]
    assert row.stop is StopReason.DONE and row.reward == 1.0 and env.calls[-1] == "close"


def test_policy_segments_carry_what_the_sampler_knew_and_nothing_else_does():
    row = play_one(ScriptedEnv(steps=(observe("42"), over())), ScriptedSampler(call(), "42<|im_end|>", version=9))
    for segment in row.segments:
        known = segment.source is Source.POLICY
        assert (segment.logprobs is not None) == (segment.policy_versions is not None) == known
    assert set(row.policy_versions[row.loss_mask]) == {9}


def test_requests_extend_the_stream_and_name_seed_and_group():
    sampler = ScriptedSampler(call(), "42<|im_end|>")
    row = play_one(ScriptedEnv(steps=(observe("42"), over())), sampler)
    for request in sampler.requests:
        np.testing.assert_array_equal(request.ids, row.tokens[: len(request.ids)])
        assert (request.trajectory, request.group, request.stop_ids) == (SEED, "0/g", FORMAT.stop_ids)


def test_actions_and_turn_records_say_what_was_sampled_and_how_tools_went():
    result = ToolResult(ToolCall("call_1_0", "python", '{"a": 1}'), True, "42", 0.25)
    env = ScriptedEnv(steps=(observe("42", tool_results=(result,)), over()))
    row = play_one(env, ScriptedSampler("hm" + call(arguments='{"a": 1}'), "42<|im_end|>"))
    assert env.actions[0].tool_calls == (result.call,)
    assert [action.finish for action in env.actions] == ["tool_calls", "stop"]
    assert env.actions[1].text == "42" and env.actions[0].policy_version == 3
    first, last = row.turns
    assert first.tools[0].ok and first.tools[0].name == "python" and first.observation == "42"
    assert first.model_s == 0.5 and last.reward == 1.0 and last.text == "42"


# Rewards


def test_rewards_and_metrics_of_steps_add_up():
    steps = (observe("x", reward=0.25, metrics={"moves": 2.0}), over(0.5, parts={"goal": 0.5}, metrics={"moves": 1.0}))
    row = play_one(ScriptedEnv(steps=steps), ScriptedSampler("a<|im_end|>"))
    assert (row.reward, row.reward_parts, row.metrics) == (0.75, {"goal": 0.5}, {"moves": 3.0})


def test_a_late_score_replaces_the_rewards():
    env = ScriptedEnv(steps=(over(0.5, parts={"step": 0.5}),), scores=(Score(2.0, {"judge": 2.0}, {"seen": 1.0}),))
    row = play_one(env, ScriptedSampler("a<|im_end|>"))
    assert (row.reward, row.reward_parts, row.metrics) == (2.0, {"judge": 2.0}, {"seen": 1.0})


# The policy's ends


def test_max_turns_ends_after_that_many_samples_with_the_env_s_score():
    env, sampler = ScriptedEnv(scores=(Score(0.25, {}, {}),)), ScriptedSampler("a<|im_end|>")
    row = play_one(env, sampler, max_turns=3)
    assert (row.stop, len(row.turns), len(sampler.requests), row.reward) == (StopReason.MAX_TURNS, 3, 3, 0.25)
    assert row.segments[-1].source is Source.POLICY


def test_max_turns_is_also_what_an_environment_s_truncation_means():
    step = Step((), 0.5, terminated=False, truncated=True)
    row = play_one(ScriptedEnv(steps=(step,)), ScriptedSampler("a<|im_end|>"))
    assert (row.stop, row.reward) == (StopReason.MAX_TURNS, 0.5)


def test_total_tokens_bounds_the_whole_stream_and_every_turn_has_room():
    prompt = len(FORMAT.prompt([Message("user", "question")]))
    for total in range(prompt + 1, prompt + 100):
        sampler = ScriptedSampler("some words<|im_end|>")
        row = play_one(ScriptedEnv(), sampler, total_tokens=total, turn_tokens=min(20, total))
        assert row.stop is StopReason.MAX_TOKENS and row.reward == 0.0
        assert len(row.tokens) <= total and row.segments[-1].source is Source.POLICY
        assert all(1 <= r.max_tokens <= min(20, total - len(r.ids)) for r in sampler.requests)


def test_turn_tokens_bounds_each_turn_and_the_environment_is_told():
    env, sampler = ScriptedEnv(steps=(observe("x"), over(0.0))), ScriptedSampler("never stops at all")
    row = play_one(env, sampler, turn_tokens=4)
    assert [len(s.ids) for s in row.segments if s.source is Source.POLICY] == [4, 4]
    assert [action.finish for action in env.actions] == ["length", "length"]
    assert row.stop is StopReason.MAX_TOKENS and [turn.finish for turn in row.turns] == ["length", "length"]


def test_a_cut_turn_is_closed_before_the_observation():
    row = play_one(ScriptedEnv(steps=(observe("x"), over(0.0))), ScriptedSampler("never stops at all"), turn_tokens=4)
    assert text_of(row.segments[2].ids).startswith("<|im_end|>\n") and row.segments[2].source is not Source.POLICY


def test_a_malformed_call_gets_an_error_observation_and_does_not_reach_the_environment():
    env = ScriptedEnv(steps=(over(1.0),))
    row = play_one(env, ScriptedSampler(BROKEN, "right<|im_end|>"))
    assert len(env.actions) == 1 and env.actions[0].text == "right" and row.reward == 1.0
    assert row.turns[0].parse_error and row.turns[0].observation.startswith("error: ")
    assert row.turns[0].observation in text_of(row.tokens)


def test_malformed_calls_in_a_row_end_the_episode():
    row = play_one(ScriptedEnv(), ScriptedSampler(BROKEN))
    assert (row.stop, row.reward, len(row.turns)) == (StopReason.BAD_CALLS, 0.0, MAX_BAD_CALLS)
    assert "malformed" in row.error


def test_malformed_calls_with_good_ones_between_do_not():
    sampler = ScriptedSampler(BROKEN, BROKEN, call(), BROKEN, BROKEN, "done<|im_end|>")
    assert play_one(ScriptedEnv(steps=(observe("x"), over())), sampler).stop is StopReason.DONE


# Observations


@pytest.mark.parametrize("limit", [1, 3, 8, 20, 60, 200])
def test_a_long_observation_is_cut_and_says_so(limit):
    text = "flood of words " * 50
    row = play_one(ScriptedEnv(steps=(observe(text), over())), ScriptedSampler("a<|im_end|>"), obs_tokens=limit)
    shown = row.turns[0].observation
    assert "…" in shown and text.startswith(shown.partition("…")[0])
    assert len(FORMAT.tokenizer.encode(shown)) <= max(limit, len(FORMAT.tokenizer.encode("…")))
    if limit >= 60:
        total = len(FORMAT.tokenizer.encode(text))
        kept = len(FORMAT.tokenizer.encode(shown.partition("…")[0]))
        assert shown.endswith(f"… [cut: {total - kept} of {total} tokens]") and kept > limit / 4


def test_an_observation_within_its_budget_is_untouched():
    text = "as it is 123"
    size = len(FORMAT.tokenizer.encode(text))
    row = play_one(ScriptedEnv(steps=(observe(text), over())), ScriptedSampler("a<|im_end|>"), obs_tokens=size)
    assert row.turns[0].observation == text


def test_several_messages_share_the_budget_and_short_ones_stay_whole():
    env = ScriptedEnv(steps=(observe("x" * 500, "short", "y" * 500), over()))
    shown = play_one(env, ScriptedSampler("a<|im_end|>"), obs_tokens=160).turns[0].observation.split("\n")
    assert shown[1] == "short" and "cut" in shown[0] and "cut" in shown[2]
    assert sum(len(FORMAT.tokenizer.encode(text)) for text in shown) <= 160


# Faults of the infrastructure


@pytest.mark.parametrize("method", ["resets", "steps", "scores"])
@pytest.mark.parametrize(
    ("failure", "stop"),
    [
        (ZeroDivisionError("oops"), StopReason.ENV_CRASH),
        (SystemExit(3), StopReason.ENV_CRASH),
        (TimeoutError("inner"), StopReason.ENV_CRASH),
        (asyncio.CancelledError(), StopReason.ENV_CRASH),
        (SandboxLost("gone"), StopReason.SANDBOX_LOST),
        (EnvFault(EnvError("sandbox", "gone", retryable=True, mask=True)), StopReason.SANDBOX_LOST),
        (EnvFault(EnvError("timeout", "slow", retryable=True, mask=True)), StopReason.TIMEOUT),
        ({"not": "an answer"}, StopReason.ENV_CRASH),
        (HANG, StopReason.TIMEOUT),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else str(value),
)
def test_a_failing_method_is_a_fault_without_reward(method, failure, stop):
    env = ScriptedEnv(**{"steps": (over(1.0),)} | {method: (failure,)})
    row = play_one(env, ScriptedSampler("a<|im_end|>"), step_s=0.05, score_s=0.05)
    assert (row.stop, row.reward) == (stop, None) and row.stop.is_fault
    assert env.calls.count("close") == 1
    if isinstance(failure, ZeroDivisionError):
        assert row.error == f"{method[:-1]} raised ZeroDivisionError: oops"


def test_an_environment_that_cannot_be_made_is_a_fault():
    def make():
        raise ImportError("no such game")

    ep = Episode(make, make_task(), FORMAT, ScriptedSampler("a"), WHO, sampling=SamplingParams(), fingerprint="f")
    (row,) = asyncio.run(ep.run())
    assert row.stop is StopReason.ENV_CRASH and "ImportError: no such game" in row.error
    assert len(row.tokens) == 0


@pytest.mark.parametrize("failure", [RuntimeError("stuck"), HANG], ids=["raises", "hangs"])
def test_a_failing_close_costs_no_reward_and_is_counted(failure):
    row = play_one(ScriptedEnv(steps=(over(1.0),), closes=(failure,)), ScriptedSampler("a<|im_end|>"), step_s=0.05)
    assert (row.stop, row.reward, row.metrics) == (StopReason.DONE, 1.0, {"close_failed": 1.0})


@pytest.mark.parametrize("mask", [True, False])
def test_a_reported_error_voids_the_episode_only_if_it_masks(mask):
    error = EnvError("tool", "flaky", retryable=False, mask=mask)
    row = play_one(ScriptedEnv(steps=(Step((), 0.5, False, error=error),)), ScriptedSampler("a<|im_end|>"))
    assert (row.stop, row.reward) == ((StopReason.ENV_CRASH, None) if mask else (StopReason.DONE, 0.5))
    assert row.error == "tool: flaky"


@pytest.mark.parametrize("mask", [True, False])
def test_a_reported_error_of_the_scorer_leaves_the_steps_rewards_or_none(mask):
    score = Score(9.0, {}, {}, error=EnvError("scorer", "judge is down", retryable=True, mask=mask))
    row = play_one(ScriptedEnv(steps=(over(0.5),), scores=(score,)), ScriptedSampler("a<|im_end|>"))
    assert row.reward == (None if mask else 0.5) and "judge is down" in row.error


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "much"])
def test_a_reward_that_is_no_number_is_a_fault(reward):
    row = play_one(ScriptedEnv(steps=(over(reward),)), ScriptedSampler("a<|im_end|>"))
    assert (row.stop, row.reward) == (StopReason.ENV_CRASH, None)


@pytest.mark.parametrize(
    "env",
    [
        ScriptedEnv(resets=(Reset(({"role": "user"},)),)),
        ScriptedEnv(steps=(Step(({"role": "user"},), None, terminated=False),)),
        ScriptedEnv(steps=(over(tool_results=("nonsense",)),)),
        ScriptedEnv(steps=(over(metrics={"x": "y"}),)),
        ScriptedEnv(steps=(Step((Message("user", [{"type": "image"}]),), None, terminated=False),)),
    ],
    ids=["reset messages", "step messages", "tool results", "metrics", "picture"],
)
def test_answers_of_wrong_types_are_faults(env):
    row = play_one(env, ScriptedSampler("a<|im_end|>"))
    assert row.stop is StopReason.ENV_CRASH and "unusable" in row.error


def test_a_prompt_without_room_is_a_fault_and_says_which_budget():
    row = play_one(ScriptedEnv(), ScriptedSampler("a<|im_end|>"), total_tokens=5, turn_tokens=5)
    assert row.stop is StopReason.ENV_CRASH and "budget.total_tokens=5" in row.error


def test_episode_s_bounds_the_environment_and_not_the_policy():
    class SlowSampler(ScriptedSampler):
        async def sample(self, request):
            await asyncio.sleep(0.1)
            return await super().sample(request)

    class SlowEnv(ScriptedEnv):
        async def step(self, action):
            await asyncio.sleep(0.1)
            return await super().step(action)

    fast = play_one(ScriptedEnv(steps=(observe("x"), over())), SlowSampler("a<|im_end|>"), episode_s=0.1)
    slow = play_one(SlowEnv(), ScriptedSampler("a<|im_end|>"), episode_s=0.25)
    assert fast.stop is StopReason.DONE
    assert slow.stop is StopReason.TIMEOUT and "episode_s" in slow.error and len(slow.turns) == 3


def test_a_blocking_environment_does_not_block_the_loop_and_is_given_up_in_time():
    async def run():
        env = BlockingEnv(seconds=0.5)
        beats, began = 0, time.perf_counter()
        playing = asyncio.ensure_future(episode(env, ScriptedSampler("a<|im_end|>"), step_s=0.1).run())
        while not playing.done():
            await asyncio.sleep(0.01)
            beats += 1
        return env, beats, time.perf_counter() - began, playing.result()

    env, beats, seconds, (row,) = asyncio.run(run())
    assert (row.stop, env.closed) == (StopReason.TIMEOUT, True) and beats >= 4 and seconds < 0.4


def test_a_blocking_environment_plays():
    assert play_one(BlockingEnv(seconds=0.0), ScriptedSampler("a<|im_end|>")).reward == 1.0


def test_an_error_of_the_sampler_is_no_fault_and_closes_the_environment():
    class Broken(ScriptedSampler):
        async def sample(self, request):
            raise RuntimeError("engine is down")

    env = ScriptedEnv()
    with pytest.raises(RuntimeError, match="engine is down"):
        play(env, Broken())
    assert env.calls == ["reset", "close"]


# Branches


def test_a_rewritten_history_begins_a_branch_that_shares_the_reward():
    compacted = (Message("user", "question"), Message("user", "summary so far"))
    env = ScriptedEnv(steps=(observe("x"), Step(compacted, None, terminated=False, rewritten=True), over(0.5)))
    sampler = ScriptedSampler("one<|im_end|>", "two<|im_end|>")
    rows = play(env, sampler)
    assert [row.branch for row in rows] == [0, 1] and [row.reward for row in rows] == [0.5, 0.5]
    assert [len(row.turns) for row in rows] == [2, 1] and len({row.group_id for row in rows}) == 1
    np.testing.assert_array_equal(rows[1].segments[0].ids, FORMAT.prompt(compacted))
    assert rows[1].segments[0].source is Source.PROMPT
    assert [request.trajectory for request in sampler.requests] == [SEED, SEED, branch_seed(SEED, 1)]
    assert rows[1].seed == branch_seed(SEED, 1) != SEED


def test_ephemeral_messages_are_shown_to_one_turn_alone():
    hint = Step((Message("user", "stay"), Message("user", "hint")), None, terminated=False, ephemeral=1)
    rows = play(ScriptedEnv(steps=(hint, observe("x"), over())), ScriptedSampler("one<|im_end|>"))
    assert len(rows) == 2 and "hint" in text_of(rows[0].tokens)
    assistant = Message("assistant", "one")
    history = [Message("user", "question"), assistant, Message("user", "stay"), assistant, Message("tool", "x")]
    np.testing.assert_array_equal(rows[1].segments[0].ids, FORMAT.prompt(history))


def test_a_branch_keeps_to_total_tokens():
    compacted = (Message("user", "long " * 200),)
    env = ScriptedEnv(steps=(Step(compacted, None, terminated=False, rewritten=True),))
    row = play_one(env, ScriptedSampler("one<|im_end|>"), total_tokens=200, turn_tokens=20)
    assert row.stop is StopReason.MAX_TOKENS


# Replay


def three_turns(**env):
    return ScriptedEnv(steps=(observe("first"), observe("second"), over(1.0)), **env)


TEXTS = ("one<|im_end|>", call(), "three<|im_end|>")


def test_a_recorded_episode_goes_on_without_sampling_again():
    (want,) = play(three_turns(), ScriptedSampler(*TEXTS))
    for known in range(len(want.segments) + 1):
        sampler = ScriptedSampler(*TEXTS)
        sampler._said[SEED] = sum(s.source is Source.POLICY for s in want.segments[:known])
        (row,) = play(three_turns(), sampler, recorded=want.segments[:known])
        np.testing.assert_array_equal(row.tokens, want.tokens)
        np.testing.assert_array_equal(row.sampler_logprobs, want.sampler_logprobs)
        assert (row.reward, row.stop) == (want.reward, want.stop)
        assert len(sampler.requests) == 3 - sum(s.source is Source.POLICY for s in want.segments[:known])


def test_recorded_turns_end_as_they_did():
    def ends(recorded=()):
        env = ScriptedEnv(steps=(observe("x"), over()))
        play(env, ScriptedSampler("never stops", "b<|im_end|>"), recorded=recorded, turn_tokens=4)
        return [action.finish for action in env.actions]

    env = ScriptedEnv(steps=(observe("x"), over()))
    (row,) = play(env, ScriptedSampler("never stops", "b<|im_end|>"), turn_tokens=4)
    assert ends() == ends(row.segments) == ["length", "stop"]


def test_an_environment_that_answers_otherwise_diverges():
    (want,) = play(three_turns(), ScriptedSampler(*TEXTS))
    other = ScriptedEnv(steps=(observe("another"), observe("second"), over(1.0)))
    with pytest.raises(Diverged, match="environment"):
        play(other, ScriptedSampler(*TEXTS), recorded=want.segments)
    assert other.calls[-1] == "close"


def test_replay_covers_branches():
    def env():
        step = Step((Message("user", "short"),), None, terminated=False, rewritten=True)
        return ScriptedEnv(steps=(observe("x"), step, observe("y"), over(1.0)))

    want = play(env(), ScriptedSampler(*TEXTS))
    sampler = ScriptedSampler(*TEXTS)
    rows = play(env(), sampler, recorded=tuple(segment for row in want for segment in row.segments))
    assert not sampler.requests and len(rows) == 2
    for row, wanted in zip(rows, want, strict=True):
        np.testing.assert_array_equal(row.tokens, wanted.tokens)


class Interrupted(ScriptedSampler):
    """Gives up the first turn after two tokens."""

    async def sample(self, request):
        turn = await super().sample(request)
        if request.sampled:
            return turn
        self._said[request.trajectory] -= 1
        return sampled_turn(turn.ids[:2], "abort", 1, 1)


def test_an_interrupted_turn_goes_on_from_its_tokens():
    sampler = Interrupted("one two three<|im_end|>")
    play_one(ScriptedEnv(steps=(over(),)), sampler)
    first, second = sampler.requests
    np.testing.assert_array_equal(second.sampled, ids_of("one two three<|im_end|>")[:2])
    assert second.sampled_versions == (1, 1) and len(second.sampled_logprobs) == 2
    np.testing.assert_array_equal(first.ids, second.ids)


def test_a_partial_turn_of_a_record_goes_on_from_its_tokens():
    begun = Segment(Source.POLICY, ids_of("one"), np.array([-0.5], np.float32), np.array([4], np.int32))
    progress = InFlight(task_id="g/0", group_id="0/g", sample_index=2, seed=SEED, partial=begun)
    sampler = ScriptedSampler("one<|im_end|>")
    asyncio.run(episode(ScriptedEnv(steps=(observe("x"), over())), sampler, progress).run())
    assert sampler.requests[0].sampled == tuple(begun.ids.tolist())
    assert sampler.requests[0].sampled_logprobs == (-0.5,) and sampler.requests[1].sampled == ()


# Progress and cancellation


def test_progress_survives_json_and_resumes_where_a_turn_was_awaited():
    class Stuck(ScriptedSampler):
        async def sample(self, request):
            if len(self.requests) == 2:
                await asyncio.sleep(60)
            return await super().sample(request)

    async def stop_at_third_turn():
        env = three_turns()
        playing = episode(env, Stuck(*TEXTS))
        task = asyncio.ensure_future(playing.run())
        while len(playing.in_flight().segments) < 7:
            await asyncio.sleep(0.001)
        progress = playing.in_flight()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() and env.calls[-1] == "close"
        return progress

    (want,) = play(three_turns(), ScriptedSampler(*TEXTS))
    progress = InFlight.from_json(json.loads(json.dumps(asyncio.run(stop_at_third_turn()).to_json())))
    sampler = ScriptedSampler(*TEXTS[2:])
    (row,) = asyncio.run(episode(three_turns(), sampler, progress).run())
    assert len(sampler.requests) == 1
    np.testing.assert_array_equal(row.tokens, want.tokens)
    assert row.sampler_logprobs.tobytes() == want.sampler_logprobs.tobytes()


def test_progress_is_not_lost_while_it_is_being_replayed():
    (want,) = play(three_turns(), ScriptedSampler(*TEXTS))
    progress = InFlight(task_id="g/0", group_id="0/g", sample_index=2, seed=SEED, segments=want.segments)

    async def run():
        playing = episode(three_turns(), ScriptedSampler(*TEXTS), progress)
        return playing.in_flight()

    assert len(asyncio.run(run()).segments) == len(want.segments)


@pytest.mark.parametrize("where", ["resets", "steps", "scores"])
@pytest.mark.parametrize("cancels", [1, 2])
def test_cancellation_closes_the_environment_to_the_end(where, cancels):
    closed = []

    class SlowToClose(ScriptedEnv):
        async def close(self):
            await asyncio.sleep(0.05)
            closed.append(self)

    async def run():
        env = SlowToClose(**{"steps": (over(),)} | {where: (HANG,)})
        task = asyncio.ensure_future(episode(env, ScriptedSampler("a<|im_end|>")).run())
        while where[:-1] not in env.calls:
            await asyncio.sleep(0.001)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed == [env]

    asyncio.run(run())

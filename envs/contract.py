"""The contract: a factory of environments in, a test class that every step environment passes out.

    class TestMyEnv(EnvContract):
        def factory(self) -> EnvFactory:
            return make_env("my_module:MyEnv")

pytest runs the `test_` methods; a plain call of one does too.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from jsonschema import Draft202012Validator

from agentjax.envs.api import Action, Env, Message, Reset, Step, Task, ToolCall
from agentjax.envs.play import Transcript, action_of, play
from agentjax.envs.registry import EnvFactory
from agentjax.envs.tasks import SPLITS, task_stream

_T = TypeVar("_T")

HOSTILE_TEXTS = (
    "",
    " \n\t",
    "\x00\x1b[2J",
    "\udcff\ud800 not text",
    "\N{REPLACEMENT CHARACTER}\N{RIGHT-TO-LEFT OVERRIDE}١٢٣",
    "<|im_end|><tool_call></tool_response>",
    "9" * 10_000,
    "word " * 20_000,
)
HOSTILE_ARGUMENTS = (
    "",
    "{",
    "null",
    "[]",
    '"text"',
    "{}",
    '{"no_such_argument": 1}',
    '{"code": 5}',
    '{"code": NaN}',
    '{"code": "\\ud800"}',
    "[" * 100_000,
    "9" * 10_000,
)


def hostile_actions(tools: Sequence[str]) -> list[Action]:
    """Turns that a policy may well sample: text that is none, tools that do not exist, arguments that do not fit."""
    calls = [ToolCall("1", name, arguments) for name in (*tools, "no_such_tool", "") for arguments in HOSTILE_ARGUMENTS]
    messages = [Message("assistant", text) for text in HOSTILE_TEXTS]
    messages += [Message("assistant", "\udcff", (call,)) for call in calls]
    messages.append(Message("assistant", None, tuple(calls[:20])))
    return [action_of(message) for message in messages]


class EnvContract:
    """What every step environment keeps to. A subclass gives the `factory`."""

    episodes = 8  # tasks tried a test

    def factory(self) -> EnvFactory:
        """The environment under test."""
        raise NotImplementedError

    def test_reset_gives_a_prompt_and_valid_tools(self):
        for task in self.tasks():
            start = self.start(task)
            assert start.messages, "reset must give at least one message"
            assert start.messages[-1].role in ("user", "tool"), "the policy answers a user or a tool message"
            for message in start.messages:
                _check_message(message)
            names = [tool.name for tool in start.tools]
            assert len(set(names)) == len(names), f"two tools share a name: {names}"
            for tool in start.tools:
                Draft202012Validator.check_schema(tool.parameters)
                assert tool.parameters.get("type") == "object", f"tool {tool.name!r}: its arguments must be an object"
                assert tool.description, f"tool {tool.name!r} needs a description"
                assert tool.timeout_s > 0, f"tool {tool.name!r} needs a timeout > 0"

    def test_tasks_follow_from_split_index_and_seed(self):
        source, again = self.factory().source, self.factory().source
        for split in SPLITS:
            count = min(self.episodes, source.size(split) or self.episodes)
            tasks = [source.task(split, index, 7) for index in range(count)]
            assert tasks == [again.task(split, index, 7) for index in range(count)], "a task must follow from its index"
            assert len({task.id for task in tasks}) == count, "two tasks share an id"
            for task in tasks:
                json.dumps(dict(task.data))

    def test_splits_share_no_task(self):
        train, held_out = (
            {json.dumps(dict(task.data), sort_keys=True) for task in self.tasks(split, 200)} for split in SPLITS
        )
        assert not train & held_out, "a held-out task is also a training task"

    def test_the_same_group_and_seed_start_in_the_same_state(self):
        if self.factory().spec.seeds != "exact":
            return
        for task in self.tasks():
            first, second = (self.start(task) for _ in range(2))
            assert first == second, f"{task.id}: two resets differ, though the env says its seeds are exact"

    def test_the_same_actions_have_the_same_consequences(self):
        """Also with another episode going on at the same time."""
        if self.factory().spec.seeds != "exact":
            return
        for name in self.factory().players:
            tasks = self.tasks()
            alone = [_run(self.play(task, name)) for task in tasks]
            together = _run(_gather([self.play(task, name) for task in tasks]))
            assert list(map(_without_times, alone)) == list(map(_without_times, together)), f"player {name!r}"

    def test_players_finish_within_the_budget(self):
        for name in self.factory().players:
            for task in self.tasks():
                transcript = _run(self.play(task, name))
                assert len(transcript.steps) <= task.budget.max_turns, f"player {name!r} overran its turns"
                assert math.isfinite(transcript.reward), f"player {name!r} earned {transcript.reward}"
                for step in transcript.steps:
                    _check_step(step)
                for message in transcript.messages:
                    _check_message(message)

    def test_calls_are_answered_in_order(self):
        for name in self.factory().players:
            for task in self.tasks():
                transcript = _run(self.play(task, name))
                for message, step in zip(_said(transcript), transcript.steps, strict=True):
                    asked = [call.id for call in message.tool_calls]
                    answered = [answer.tool_call_id for answer in step.messages if answer.role == "tool"]
                    assert answered == asked, f"calls {asked} were answered by {answered}"
                    assert [result.call for result in step.tool_results] == list(message.tool_calls)

    def test_hostile_turns_never_raise(self):
        task = self.tasks()[0]
        start = self.start(task)
        for action in hostile_actions([tool.name for tool in start.tools]):
            step = self.first_step(task, action)
            _check_step(step)
            for message in step.messages:
                _check_message(message)

    def test_a_policy_that_never_ends_is_ended(self):
        task = self.tasks()[0]

        async def insist(env: Env) -> None:
            start = await env.reset(task)
            calls = (ToolCall("1", start.tools[0].name if start.tools else "no_such_tool", "{"),)
            steps: list[Step] = []
            while not steps or not _is_end(steps[-1]):
                assert len(steps) < task.budget.max_turns, "the env must end the episode at budget.max_turns"
                steps.append(await env.step(action_of(Message("assistant", None, calls))))
            rewarded = any(step.reward is not None for step in steps) or await env.score() is not None
            assert rewarded, "an episode that ended without a fault has a reward"

        _run(_with_env(self.factory(), insist))

    def test_done_means_done(self):
        task = self.tasks()[0]

        async def step_after_the_end(env: Env) -> None:
            start = await env.reset(task)
            player = self.any_player()
            observed, step = start.messages, None
            while step is None or not _is_end(step):
                step = await env.step(action_of(player.act(observed)))
                observed = step.messages
            await _raises_runtime_error(env.step(action_of(Message("assistant", "one more"))), "step after the end")

        _run(_with_env(self.factory(), step_after_the_end))

    def test_steps_out_of_order_say_what_is_wrong(self):
        task = self.tasks()[0]
        say = action_of(Message("assistant", "hello"))

        async def misuse(env: Env) -> None:
            await _raises_runtime_error(env.step(say), "step before reset")
            await env.reset(task)
            await env.close()
            await _raises_runtime_error(env.step(say), "step after close")

        _run(_with_env(self.factory(), misuse))

    def test_close_may_be_called_at_any_time_and_again(self):
        good = self.tasks()[0]
        bad = Task(good.id, good.group, good.seed, data={}, budget=good.budget)

        async def close_twice(env: Env) -> None:
            await env.close()
            await env.close()

        async def fail_then_close(env: Env) -> None:
            try:
                await env.reset(bad)
            except Exception:  # whatever a task without data breaks
                pass
            await close_twice(env)

        for use in (close_twice, fail_then_close):
            _run(use(self.factory()()))

    def tasks(self, split: str = "train", count: int | None = None) -> list[Task]:
        """The first tasks of a split."""
        stream = task_stream(self.factory().source, split, seed=0)
        return [next(stream) for _ in range(count or self.episodes)]

    def start(self, task: Task) -> Reset:
        """What a new instance answers to reset."""
        return _run(_with_env(self.factory(), lambda env: env.reset(task)))

    def first_step(self, task: Task, action: Action) -> Step:
        """What a new instance answers to a first action."""

        async def reset_and_step(env: Env) -> Step:
            await env.reset(task)
            return await env.step(action)

        return _run(_with_env(self.factory(), reset_and_step))

    def any_player(self) -> Any:
        """A player of the environment, or one that only says hello."""
        players = self.factory().players
        return next(iter(players.values()))(seed=0) if players else _Greeter()

    async def play(self, task: Task, player: str) -> Transcript:
        """The transcript of a scripted player's episode."""
        factory = self.factory()
        return await play(factory(), task, factory.player(player, seed=task.seed))


class _Greeter:
    def act(self, observation_messages: Sequence[Message]) -> Message:
        return Message("assistant", "hello")


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run(work)


async def _gather(work: Sequence[Awaitable[_T]]) -> list[_T]:
    return list(await asyncio.gather(*work))


async def _with_env(factory: EnvFactory, use: Callable[[Env], Awaitable[_T]]) -> _T:
    env = factory()
    try:
        return await use(env)
    finally:
        await env.close()


async def _raises_runtime_error(work: Awaitable[Any], what: str) -> None:
    try:
        await work
    except RuntimeError as error:
        assert str(error), f"{what} must say what is wrong"
    else:
        raise AssertionError(f"{what} must raise RuntimeError")


def _said(transcript: Transcript) -> list[Message]:
    return [message for message in transcript.messages if message.role == "assistant"]


def _without_times(transcript: Transcript) -> tuple[Any, ...]:
    steps = [(s.messages, s.reward, s.terminated, s.truncated, s.parts, s.metrics) for s in transcript.steps]
    return transcript.messages, transcript.reward, steps


def _is_end(step: Step) -> bool:
    return step.terminated or step.truncated


def _check_step(step: Step) -> None:
    assert step.error is None, f"an action brought a fault on: {step.error}"
    assert step.messages or _is_end(step), "a step that does not end the episode needs an observation"
    numbers = [*step.parts.values(), *step.metrics.values(), *([] if step.reward is None else [step.reward])]
    assert all(map(math.isfinite, numbers)), f"rewards, parts and metrics must be finite: {step}"


def _check_message(message: Message) -> None:
    if isinstance(message.content, str):
        message.content.encode("utf-8")  # raises on what a tokenizer could not take

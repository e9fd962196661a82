"""Tool environments made of tasks, functions and a reward."""

import asyncio
import math

import pytest

from agentjax.envs.api import Budget, EnvError, EnvFault, Message, Task, ToolCall
from agentjax.envs.contract import EnvContract
from agentjax.envs.play import action_of
from agentjax.envs.registry import EnvFactory
from agentjax.envs.tool_env import tool_env

POPULATION = {"Oslo": 717710, "Bergen": 291940}


async def population(city: str) -> int:
    """Number of people who live in a city."""
    return POPULATION[city]


def cities(**changes):
    options = {
        "train": [{"question": "Oslo?", "answer": "717710"}],
        "eval": [{"question": "Bergen?", "answer": "291940"}],
        "tools": [population],
        "reward": lambda outcome: float(outcome.answer == outcome.data["answer"]),
    }
    return tool_env("cities", **(options | changes))


def steps_of(env_class, *messages, budget=None):
    """The steps with which an episode of the first task answers the messages."""

    async def run():
        env = env_class()
        data = env_class.source(env.args).task("train", 0, 0).data
        await env.reset(Task("t", "t", 0, data, budget or Budget()))
        return [await env.step(action_of(message)) for message in messages]

    return asyncio.run(run())


def ask(*cities):
    calls = [ToolCall(str(i), "population", f'{{"city": "{city}"}}') for i, city in enumerate(cities)]
    return Message("assistant", None, tuple(calls))


class TestCities(EnvContract):
    def factory(self):
        env_class = cities(system="Answer with a number.")
        return EnvFactory("cities", env_class, env_class.Args(), env_class.source(env_class.Args()))


def test_calls_are_answered_then_the_answer_is_judged():
    call, end = steps_of(cities(), ask("Oslo", "Paris"), Message("assistant", "717710"))
    assert [(m.role, m.tool_call_id, m.content) for m in call.messages] == [
        ("tool", "0", "717710"),
        ("tool", "1", "error: KeyError: 'Paris'"),
    ]
    assert (call.reward, call.terminated, call.metrics) == (None, False, {"tool_calls": 2.0, "tool_errors": 1.0})
    assert (end.reward, end.terminated, end.parts) == (1.0, True, {"reward": 1.0})


def test_running_out_of_turns_is_judged_without_an_answer():
    seen = []
    env_class = cities(reward=lambda outcome: seen.append(outcome) or {"answered": 0.0, "effort": 0.25})
    first, last = steps_of(env_class, ask("Oslo"), ask("Bergen"), budget=Budget(max_turns=2))
    assert not first.truncated
    assert (last.truncated, last.terminated, last.reward) == (True, False, 0.25)
    assert (seen[0].answer, seen[0].turns) == ("", 2)
    assert [result.content for result in seen[0].tool_results] == ["717710", "291940"]


def test_rewards_may_be_async():
    async def later(outcome):
        await asyncio.sleep(0)
        return 0.5

    assert steps_of(cities(reward=later), Message("assistant", "?"))[0].reward == 0.5


@pytest.mark.parametrize("outcome", [ZeroDivisionError("x"), math.nan, math.inf, "high", None])
def test_a_broken_reward_is_a_fault_and_never_zero(outcome):
    def reward(_):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    (step,) = steps_of(cities(reward=reward), Message("assistant", "717710"))
    assert step.reward is None
    assert step.error is not None and step.error.kind == "scorer" and step.error.mask


def test_a_fault_of_a_tool_ends_the_episode_as_such():
    fault = EnvError("sandbox", "gone", retryable=True, mask=True)

    def population(city: str) -> int:
        """Never."""
        raise EnvFault(fault)

    (step,) = steps_of(cities(tools=[population]), ask("Oslo"))
    assert (step.error, step.reward) == (fault, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": []}, "'train' split has no tasks"),
        ({"train": [{"prompt": "x"}]}, "needs a 'question'"),
        ({"eval": [{"question": "Oslo?", "answer": "717710"}]}, "eval task 0 is train task 0"),
        ({"tools": [lambda x: x]}, "docstring"),
        ({"tools": [population, population]}, "two tools are named 'population'"),
    ],
)
def test_mistakes_are_named_when_the_environment_is_made(changes, message):
    with pytest.raises(ValueError, match=message):
        cities(**changes)

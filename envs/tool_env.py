"""Tool environments: a list of tasks, plain functions as tools and a reward function in, an environment out.

    def population(city: str) -> int:
        '''Number of people who live in a city.'''
        return POPULATION[city]

    def reward(outcome: Outcome) -> float:
        return float(outcome.answer == outcome.data["answer"])

    Cities = tool_env(
        "cities",
        train=[{"question": "How many people live in Oslo?", "answer": "717710"}],
        eval=[{"question": "How many people live in Bergen?", "answer": "291940"}],
        tools=[population],
        reward=reward,
    )

Name it in a config as `my_module:Cities`. The prompt is the task's "question" as a user message, after `system` if that
is given. A message with tool calls gets their results, one tool message a call; a message without is the final answer.

An environment whose tools need state of their own, or arguments, subclasses `ToolEnv`; `python_math` is one.
"""

import dataclasses
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentjax.envs.api import Action, EnvError, EnvFault, EnvSpec, Message, Reset, Step, Task, TaskSource, ToolResult
from agentjax.envs.episode import Episode
from agentjax.envs.tasks import ListedTasks
from agentjax.envs.tools import Tool, Toolbox


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a reward function judges.

    Attributes:
        data: What the task holds.
        answer: Text of the final message; empty if the turns ran out before one.
        tool_results: Every tool call of the episode, in order.
        turns: Sampled messages.
    """

    data: Mapping[str, Any]
    answer: str
    tool_results: tuple[ToolResult, ...]
    turns: int


Reward = float | Mapping[str, float]  # a number, or named parts that add up to it
RewardFn = Callable[[Outcome], Reward | Awaitable[Reward]]


class ToolEnv(Episode):
    """A question, tool calls, an answer. A subclass fills in `source`, `tools` and `reward`, perhaps `prompt`."""

    def __init__(self, *, sandboxes: Any = None, **args: Any):
        super().__init__(sandboxes=sandboxes, **args)
        self._tool_results: tuple[ToolResult, ...] = ()

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """The tools: plain typed functions, bound methods, or `Tool`s."""
        raise NotImplementedError

    def prompt(self, data: Mapping[str, Any]) -> tuple[Message, ...]:
        """The first messages of a task."""
        return (Message("user", data["question"]),)

    def reward(self, outcome: Outcome) -> Reward | Awaitable[Reward]:
        """Judges an episode; sync or async. A mapping names the parts that add up to the reward."""
        raise NotImplementedError

    async def begin(self, task: Task) -> Reset:
        """Shows the prompt and the tools."""
        self._toolbox = Toolbox(self.tools())
        return Reset(self.prompt(task.data), self._toolbox.specs, seed_honored=True)

    async def answer(self, action: Action) -> Step:
        """Runs the calls one after the other, or judges the answer.

        Metrics: `tool_calls`, the calls of the turn, and `tool_errors`, how many of them failed.
        """
        if not action.tool_calls:
            return await self._finish(Step((), None, terminated=True), action.text)
        try:
            results = tuple([await self._toolbox.call(call) for call in action.tool_calls])
        except EnvFault as fault:
            return Step((), None, False, error=fault.error)
        self._tool_results += results
        messages = tuple(Message("tool", result.content, tool_call_id=result.call.id) for result in results)
        step = Step(messages, None, terminated=False, metrics=_counts(results), tool_results=results)
        return await self._finish(step, "") if self.is_last_turn else step

    async def _finish(self, step: Step, answer: str) -> Step:
        """The last step, with its reward."""
        outcome = Outcome(self.task.data, answer, self._tool_results, self.turns)
        try:
            reward = self.reward(outcome)
            parts = _parts(await reward if inspect.isawaitable(reward) else reward)
        except EnvFault as fault:
            return dataclasses.replace(step, error=fault.error)
        except Exception as error:  # a scorer is somebody's code: its failure is a fault, never a reward of 0
            detail = f"reward raised {type(error).__name__}: {error}"
            return dataclasses.replace(step, error=EnvError("scorer", detail, retryable=False, mask=True))
        return dataclasses.replace(step, reward=sum(parts.values()), parts=parts)


def _counts(results: Sequence[ToolResult]) -> dict[str, float]:
    return {"tool_calls": float(len(results)), "tool_errors": float(sum(not result.ok for result in results))}


def _parts(reward: Reward) -> dict[str, float]:
    parts = dict(reward) if isinstance(reward, Mapping) else {"reward": reward}
    parts = {name: float(value) for name, value in parts.items()}
    if not all(map(math.isfinite, parts.values())):
        raise ValueError(f"a reward must be finite, got {parts}")
    return parts


def tool_env(
    name: str,
    *,
    train: Sequence[Mapping[str, Any]],
    eval: Sequence[Mapping[str, Any]],
    tools: Sequence[Callable[..., Any] | Tool],
    reward: RewardFn,
    system: str | None = None,
) -> type[ToolEnv]:
    """Makes an environment class of tasks, tools and a reward.

    Args:
        name: Names the environment and begins its task ids.
        train: Training tasks: JSON values, with the prompt under "question".
        eval: Held-out tasks; none may be a training task.
        tools: Plain typed functions with docstrings; see `tool_spec`. All episodes share them.
        reward: Judges an `Outcome`; gives a number, or named parts that add up to it. Sync or async.
        system: A system message before the question.

    Raises:
        ValueError: If a split is empty, a task has no question or is in both splits, or a tool cannot be described.
        TypeError: If a tool's parameters have no annotations, or ones that JSON cannot hold.
    """
    tasks = ListedTasks(name, train, eval)
    for data in (*train, *eval):
        if not isinstance(data.get("question"), str):
            raise ValueError(f"{name}: every task needs a 'question' text, got {dict(data)}.")
    shared = Toolbox(tools)
    before = () if system is None else (Message("system", system),)

    class Listed(ToolEnv):
        spec = EnvSpec(name, "1", "step", sync=False, concurrency=0, seeds="exact")

        @classmethod
        def source(cls, args: Any) -> TaskSource:
            return tasks

        def tools(self) -> Sequence[Tool]:
            return shared.tools

        def prompt(self, data: Mapping[str, Any]) -> tuple[Message, ...]:
            return before + super().prompt(data)

        def reward(self, outcome: Outcome) -> Reward | Awaitable[Reward]:
            return reward(outcome)

    Listed.__name__ = Listed.__qualname__ = name
    Listed.__doc__ = f"The {name!r} environment."
    return Listed

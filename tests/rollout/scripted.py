"""Scripted policies and environments: what a test says happens, happens."""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from agentjax.chat import ChatMLHermes, train_tokenizer
from agentjax.envs.api import Action, Budget, EnvSpec, Message, Reset, Score, Step, Task
from agentjax.rollout.request import SampledTurn, TurnRequest

FORMAT = ChatMLHermes(train_tokenizer(["user question, assistant answer"], vocab_size=400))
SPEC = EnvSpec("scripted", "1", "step", sync=False, concurrency=0, seeds="exact")
BROKEN = "<tool_call>\nnot json\n</tool_call><|im_end|>"
HANG = "hang"


def call(name: str = "python", arguments: str = "{}") -> str:
    """What a policy samples to call a tool."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call><|im_end|>'


def ids_of(text: str) -> np.ndarray:
    """Ids of a sampled text, special tokens by name."""
    tokenizer = FORMAT.tokenizer
    parts = tokenizer.special_pattern.split(text)
    ids = [[tokenizer.special(p)] if i % 2 else tokenizer.encode(p) for i, p in enumerate(parts)]
    return np.array(sum(ids, []), np.int32)


def text_of(ids: np.ndarray) -> str:
    return FORMAT.tokenizer.decode(ids.tolist())


def make_task(group: str = "g", **budget: Any) -> Task:
    return Task(id=f"{group}/0", group=group, seed=7, data={}, budget=Budget(**{"total_tokens": 2000} | budget))


class ScriptedSampler:
    """Says the given texts in turn, the last one for ever; every token has a logprob that tells its request's seed."""

    def __init__(self, *texts: str, version: int = 3):
        self.texts = texts
        self.version = version
        self.requests: list[TurnRequest] = []
        self._said: dict[int, int] = {}

    def say(self, request: TurnRequest) -> str:
        count = self._said.get(request.trajectory, 0)
        self._said[request.trajectory] = count + 1
        return self.texts[min(count, len(self.texts) - 1)]

    async def sample(self, request: TurnRequest) -> SampledTurn:
        self.requests.append(request)
        await asyncio.sleep(0)
        ids = ids_of(self.say(request))
        stop = "stop_id" if ids[-1] in request.stop_ids and len(ids) <= request.max_tokens else "length"
        return sampled_turn(ids[: request.max_tokens], stop, request.trajectory % 1000, self.version)


def sampled_turn(ids: np.ndarray, stop: Any, mark: int, version: int) -> SampledTurn:
    logprobs = np.full(len(ids), -mark / 1000, np.float32)
    return SampledTurn(ids, logprobs, np.full(len(ids), version, np.int32), stop, None, seconds=0.5)


@dataclasses.dataclass
class ScriptedEnv:
    """Answers with the given things in turn, the last one for ever: a value, an exception to raise, or `HANG`."""

    resets: Sequence[Any] = (Reset((Message("user", "question"),)),)
    steps: Sequence[Any] = (Step((Message("user", "go on"),), None, terminated=False),)
    scores: Sequence[Any] = (None,)
    closes: Sequence[Any] = (None,)
    spec: EnvSpec = SPEC
    actions: list[Action] = dataclasses.field(default_factory=list)
    calls: list[str] = dataclasses.field(default_factory=list)

    async def reset(self, task: Task) -> Any:
        return await self._play("reset", self.resets)

    async def step(self, action: Action) -> Any:
        self.actions.append(action)
        return await self._play("step", self.steps)

    async def score(self) -> Any:
        return await self._play("score", self.scores)

    async def close(self) -> Any:
        return await self._play("close", self.closes)

    async def snapshot(self) -> None:
        return None

    async def restore(self, state: bytes) -> None:
        raise RuntimeError

    async def _play(self, method: str, script: Sequence[Any]) -> Any:
        answer = script[min(self.calls.count(method), len(script) - 1)]
        self.calls.append(method)
        if answer is HANG:
            await asyncio.sleep(60)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class BlockingEnv:
    """A sync environment, whose methods block their thread."""

    spec = dataclasses.replace(SPEC, sync=True)

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.closed = False

    def reset(self, task: Task) -> Reset:
        return Reset((Message("user", "question"),))

    def step(self, action: Action) -> Step:
        time.sleep(self.seconds)
        return Step((), 1.0, terminated=True)

    def score(self) -> Score | None:
        return None

    def close(self) -> None:
        self.closed = True


class Factory:
    """Makes environments by a script, one an episode, and keeps them."""

    def __init__(self, make: Callable[[int], Any] | Iterable[Any], spec: EnvSpec = SPEC):
        self._make = make if callable(make) else iter(make).__next__
        self._numbered = callable(make)
        self.spec = spec
        self.made: list[Any] = []

    def __call__(self) -> Any:
        env = self._make(len(self.made)) if self._numbered else self._make()
        self.made.append(env)
        if isinstance(env, BaseException):
            raise env
        return env


def over(reward: float | None = 1.0, **fields: Any) -> Step:
    return Step((), reward, terminated=True, **fields)


def observe(*texts: str, reward: float | None = None, **fields: Any) -> Step:
    return Step(tuple(Message("tool", text) for text in texts), reward, terminated=False, **fields)

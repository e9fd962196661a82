"""Demonstrations: an environment and its scripted players in, transcripts and training rows out.

Players act in the real environment, tools and all; `env.players` sets their shares.
"""

import asyncio
import itertools

import numpy as np

from agentjax.chat.format import ChatFormat
from agentjax.config import Config
from agentjax.envs.api import EnvError, EnvFault, Task
from agentjax.envs.play import Transcript, play
from agentjax.envs.registry import EnvFactory
from agentjax.envs.tasks import first_tasks
from agentjax.rollout.host import HostLoop
from agentjax.trajectory import Segment, Source, StopReason, Trajectory

_AT_ONCE = 64


def play_demonstrations(env: EnvFactory, config: Config, host: HostLoop, *, count: int) -> list[Transcript]:
    """Play the first training tasks with the players of the config. The same config gives the same transcripts.

    An episode is played again after a fault, `rollout.retries` times.

    Raises:
        EnvFault: If the environment or its sandbox keeps failing, or an episode takes longer than `budget.episode_s`.
    """
    tasks = first_tasks(env.source, "train", count, seed=config.seed, budget=config.budget)
    names = list(config.env.players)
    shares = np.array([config.env.players[name] for name in names])
    rng = np.random.default_rng([config.seed, 1])
    chosen = rng.choice(len(names), size=count, p=shares / shares.sum())
    gate = asyncio.Semaphore(_AT_ONCE)

    async def demonstrate(index: int) -> Transcript:
        async with gate:
            return await _play(env, tasks[index], names[chosen[index]], config.seed + index, config.rollout.retries)

    async def everything() -> list[Transcript]:
        return await asyncio.gather(*(demonstrate(index) for index in range(count)))

    return host.call(everything())


async def _play(env: EnvFactory, task: Task, player: str, seed: int, retries: int) -> Transcript:
    deadline = asyncio.timeout(task.budget.episode_s)
    try:
        async with deadline:
            return await play(env(), task, env.player(player, seed=seed))
    except TimeoutError as error:
        if not deadline.expired():
            raise
        detail = f"a demonstration took longer than budget.episode_s ({task.budget.episode_s:g} s)"
        raise EnvFault(EnvError("timeout", detail, retryable=False, mask=True)) from error
    except EnvFault as fault:
        if not fault.error.retryable or not retries:
            raise
    return await _play(env, task, player, seed, retries - 1)


def demonstration_rows(transcripts: list[Transcript], fmt: ChatFormat) -> list[Trajectory]:
    """Transcripts as rows for SFT: what the player said is the policy's, and is trained.

    Sampler log-probabilities are 0, since nothing was sampled; SFT does not look at them.
    """
    return [_row(transcript, index, fmt) for index, transcript in enumerate(transcripts)]


def _row(transcript: Transcript, index: int, fmt: ChatFormat) -> Trajectory:
    messages = list(transcript.messages)
    start = next(i for i, message in enumerate(messages) if message.role == "assistant")
    segments = [Segment(Source.PROMPT, fmt.prompt(messages[:start], transcript.tools))]
    for spoken, group in itertools.groupby(messages[start:], key=lambda message: message.role == "assistant"):
        if spoken:
            segments += [_said(fmt.render_assistant(message)) for message in group]
        else:
            segments += fmt.delta(list(group), int(segments[-1].ids[-1]))
    while segments[-1].source is not Source.POLICY:  # an observation nobody answered
        segments.pop()
    return Trajectory(
        task_id=transcript.task.id,
        group_id=f"demonstration/{index}",
        sample_index=0,
        seed=0,
        segments=tuple(segments),
        turns=(),
        reward=transcript.reward,
        stop=StopReason.DONE,
    )


def _said(ids: np.ndarray) -> Segment:
    ids = np.asarray(ids, np.int32)
    return Segment(Source.POLICY, ids, np.zeros(len(ids), np.float32), np.full(len(ids), -1, np.int32))

"""Groups: tasks in, completed groups of trajectories out. Episodes run side by side; their order never shows."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence

import numpy as np

from agentjax.chat.format import ChatFormat
from agentjax.envs.api import Task
from agentjax.envs.registry import EnvFactory
from agentjax.rollout.episodes import Episode
from agentjax.rollout.pending import PendingGroup
from agentjax.rollout.progress import InFlight
from agentjax.rollout.request import Sampler, SamplingParams, TurnRequest
from agentjax.rollout.samples import Sample, trajectory_seed
from agentjax.trajectory import Segment, StopReason, Trajectory

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Group:
    """The samples of one task, which are compared with each other.

    Attributes:
        index: Number of the group in the run.
        task: What was played.
        trajectories: Rows by sample, then by branch.
    """

    index: int
    task: Task
    trajectories: tuple[Trajectory, ...]


@dataclasses.dataclass
class _Open:
    """A group being played."""

    index: int
    task: Task
    size: int
    samples: dict[int, Sample]
    rows: dict[int, tuple[Trajectory, ...]]

    @property
    def done(self) -> bool:
        return len(self.rows) == self.size

    @property
    def ordered_rows(self) -> tuple[Trajectory, ...]:
        return tuple(row for index in sorted(self.rows) for row in self.rows[index])


class Rollouts:
    """Plays groups of episodes against a sampler. All methods belong to the thread of one event loop.

    A fault of an environment is data and ends one episode. An error of the sampler or of this package ends all of them:
    `wait` raises it, once every environment is closed.

    Attributes:
        next_index: Number of the group submitted next; a restarted run sets it.
    """

    def __init__(
        self,
        make_env: EnvFactory,
        fmt: ChatFormat,
        sampler: Sampler,
        *,
        seed: int,
        sampling: SamplingParams,
        max_concurrent: int,
        retries: int,
        fingerprint: str,
    ):
        """Start with no groups.

        Args:
            make_env: Gives an environment an episode.
            fmt: Between messages and ids.
            sampler: The policy.
            seed: Run seed; see `trajectory_seed`.
            sampling: How tokens are drawn.
            max_concurrent: Episodes at a time; fewer if the environment says so.
            retries: Times an episode is played again after a fault.
            fingerprint: Identifies model and config.
        """
        self.next_index = 0
        self._make_env = make_env
        self._fmt = fmt
        self._sampler = sampler
        self._seed = seed
        self._sampling = sampling
        self._retries = retries
        self._fingerprint = fingerprint
        self._slots = asyncio.Semaphore(min(max_concurrent, make_env.spec.concurrency or max_concurrent))
        self._groups: dict[int, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._error: BaseException | None = None

    async def __aenter__(self) -> "Rollouts":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def submit(self, task: Task, group_size: int) -> int:
        """Begin a group.

        Args:
            task: What all its samples play.
            group_size: Samples.

        Returns:
            The group's index.
        """
        index = self.next_index
        group_id = f"{index}/{task.group}"
        samples = tuple(
            InFlight(
                task_id=task.id,
                group_id=group_id,
                sample_index=sample,
                seed=trajectory_seed(self._seed, index, sample),
            )
            for sample in range(group_size)
        )
        self.resume(PendingGroup(index, task, group_size, in_flight=samples))
        return index

    def resume(self, pending: PendingGroup) -> None:
        """Go on with a group of an earlier process. Its recorded turns are replayed, not sampled.

        Raises:
            ValueError: If the record lacks samples, or the group is already being played.
        """
        finished = {row.sample_index for row in pending.finished}
        playing = {progress.sample_index for progress in pending.in_flight}
        if finished | playing != set(range(pending.group_size)) or pending.index in self._groups:
            raise ValueError(f"group {pending.index} cannot be resumed: samples are missing, or it is being played.")
        samples = {progress.sample_index: self._sample(pending.task, progress) for progress in pending.in_flight}
        rows = {i: tuple(row for row in pending.finished if row.sample_index == i) for i in finished}
        self._groups[pending.index] = _Open(pending.index, pending.task, pending.group_size, samples, rows)
        self.next_index = max(self.next_index, pending.index + 1)
        for sample_index, sample in samples.items():
            self._start(self._groups[pending.index], sample_index, sample)

    @property
    def open(self) -> int:
        """Groups submitted and not yet received."""
        return len(self._groups)

    async def wait(self, count: int) -> tuple[Group, ...]:
        """Receive completed groups.

        Args:
            count: How many to wait for.

        Returns:
            As many groups, in the order of their indices; where more are complete, the earliest.

        Raises:
            ValueError: If fewer are open.
            RuntimeError: If they are closed.
            BaseException: What the sampler raised.
        """
        if count > self.open:
            raise ValueError(f"wait({count}): only {self.open} groups are open; submit more first.")
        while self._error is None and len(done := self._completed()) < count:
            if not self._tasks:
                raise RuntimeError("these rollouts are closed: no episode is being played.")
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            await self.close()
            raise self._error
        return tuple(self._receive(group) for group in done[:count])

    def pending(self, under_way: Callable[[TurnRequest], Segment | None] = lambda _: None) -> tuple[PendingGroup, ...]:
        """Every group not yet received, for a checkpoint.

        Args:
            under_way: The tokens sampled so far for a request the sampler is busy with. Without it, turns under way are
                sampled again after a restart.
        """
        return tuple(
            PendingGroup(
                group.index,
                group.task,
                group.size,
                group.ordered_rows,
                tuple(
                    sample.in_flight(under_way) for i, sample in sorted(group.samples.items()) if i not in group.rows
                ),
            )
            for _, group in sorted(self._groups.items())
        )

    async def close(self) -> None:
        """Stop every episode and wait until its environment is closed."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _sample(self, task: Task, progress: InFlight) -> Sample:
        def new_episode(progress: InFlight) -> Episode:
            return Episode(
                self._make_env,
                task,
                self._fmt,
                self._sampler,
                progress,
                sampling=self._sampling,
                fingerprint=self._fingerprint,
            )

        return Sample(new_episode, progress, retries=self._retries)

    def _start(self, group: _Open, sample_index: int, sample: Sample) -> None:
        async def play() -> None:
            async with self._slots:
                group.rows[sample_index] = await sample.run()

        task = asyncio.get_running_loop().create_task(play(), name=f"episode {group.index}.{sample_index}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and self._error is None:
            self._error = task.exception()
        self._news.set()

    def _completed(self) -> list[_Open]:
        return [group for _, group in sorted(self._groups.items()) if group.done]

    def _receive(self, group: _Open) -> Group:
        del self._groups[group.index]
        return Group(group.index, group.task, same_start(group.ordered_rows))


def same_start(rows: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """Check that the samples of a group began alike, by the ids of their prompts.

    Args:
        rows: The rows of one group.

    Returns:
        The rows. Those of a sample that began unlike the first one are faults of the environment: without a reward, and
        with `start_mismatch` in their metrics.
    """
    prompts = {row.sample_index: row.segments[0].ids for row in rows if row.branch == 0 and len(row.segments[0].ids)}
    if not prompts:
        return tuple(rows)
    first = min(prompts)
    odd = {index for index, ids in prompts.items() if not np.array_equal(ids, prompts[first])}
    if odd:
        _LOG.warning("group %s: samples %s do not start like sample %d.", rows[0].group_id, sorted(odd), first)
    return tuple(_void(row, first) if row.sample_index in odd else row for row in rows)


def _void(row: Trajectory, first: int) -> Trajectory:
    error = (
        f"its prompt differs from that of sample {first}, which has the same task and seed: "
        f"does the environment draw everything random from Task.seed?"
    )
    metrics = {**row.metrics, "start_mismatch": 1.0}
    return dataclasses.replace(row, reward=None, stop=StopReason.ENV_CRASH, error=error, metrics=metrics)

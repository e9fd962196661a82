"""Task sources and streams: a split, an index and a seed in, tasks out; the same in, the same out.

stream = task_stream(source, "train", seed=0, shard=(process, processes))
state = stream.get_state()          # JSON values, for the checkpoint
stream.set_state(state)             # goes on where the state was taken
"""

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grain
import numpy as np

from agentjax.envs.api import Budget, Task, TaskSource

SPLITS = ("train", "eval")
_ENDLESS = 2**40  # indices of an infinite split; nobody trains that long
_MAX_DRAWS = 10_000


@dataclasses.dataclass(frozen=True)
class ListedTasks:
    """Tasks given as lists, one a split.

    Attributes:
        name: Begins every task's id.
        train: What each training task holds; JSON values.
        eval: What each held-out task holds.

    Raises:
        ValueError: If a split is empty, or a task is in both.
    """

    name: str
    train: Sequence[Mapping[str, Any]]
    eval: Sequence[Mapping[str, Any]]

    def __post_init__(self):
        for split in SPLITS:
            if not len(getattr(self, split)):
                raise ValueError(f"{self.name}: the {split!r} split has no tasks.")
        train = {_key(data): index for index, data in enumerate(self.train)}
        for index, data in enumerate(self.eval):
            if _key(data) in train:
                raise ValueError(
                    f"{self.name}: eval task {index} is train task {train[_key(data)]}; splits must differ."
                )

    def size(self, split: str) -> int | None:
        """Number of tasks in the split."""
        return len(getattr(self, _checked(split)))

    def task(self, split: str, index: int, seed: int) -> Task:
        """The task at an index; the seed reaches the environment's randomness alone."""
        data = getattr(self, _checked(split))[index]
        return _task(f"{self.name}/{split}/{index}", data, [seed, index, zlib.crc32(split.encode())])


@dataclasses.dataclass(frozen=True)
class DrawnTasks:
    """Endless tasks drawn at random, one an index.

    A hash of what a task holds decides its split, so that no task is ever in both, whatever the seeds.

    Attributes:
        name: Begins every task's id.
        draw: Draws what a task holds; JSON values.
        eval_fraction: Share of all possible tasks that is held out.
    """

    name: str
    draw: Callable[[np.random.Generator], Mapping[str, Any]]
    eval_fraction: float = 1 / 8

    def size(self, split: str) -> int | None:
        """None: the split has no end."""
        _checked(split)
        return None

    def task(self, split: str, index: int, seed: int) -> Task:
        """The task at an index.

        Raises:
            ValueError: If there are too few possible tasks for the split to have one.
        """
        entropy = [seed, index, zlib.crc32(_checked(split).encode())]
        rng = np.random.default_rng(entropy)
        for _ in range(_MAX_DRAWS):
            data = self.draw(rng)
            if self.split_of(data) == split:
                return _task(f"{self.name}/{split}/{seed}/{index}", data, entropy)
        raise ValueError(f"{self.name}: no {split!r} task among {_MAX_DRAWS} drawn; env.args leave too few tasks.")

    def split_of(self, data: Mapping[str, Any]) -> str:
        """The split a task belongs to."""
        digest = hashlib.blake2b(_key(data).encode(), digest_size=8).digest()
        return "eval" if int.from_bytes(digest, "big") < self.eval_fraction * 2**64 else "train"


def task_stream(
    source: TaskSource,
    split: str,
    *,
    seed: int,
    budget: Budget | None = None,
    shuffle: bool = True,
    repeat: bool = True,
    shard: tuple[int, int] = (0, 1),
) -> grain.DatasetIterator[Task]:
    """Streams the tasks of a split, with a state for checkpoints.

    Tasks are built in the caller's thread, as they are asked for.

    Args:
        source: Where tasks come from.
        split: "train" or "eval".
        seed: Decides the order of a finite split and the tasks of an endless one.
        budget: What each episode may spend; None keeps the source's.
        shuffle: Whether to reorder a finite split, anew in each pass. The tasks of an endless one are drawn at random.
        repeat: Whether to begin again after the last task.
        shard: This process and the number of processes; together they see each task of a pass once.

    Returns:
        An iterator with `get_state() -> dict` of JSON values and `set_state(dict)`.

    Raises:
        ValueError: If the split does not exist, or the shard is not one of the processes.
    """
    index, count = shard
    if not 0 <= index < count:
        raise ValueError(f"shard must be (process, processes) with 0 <= process < processes, got {shard}.")
    size = source.size(_checked(split))
    indices = grain.MapDataset.range(_ENDLESS if size is None else size)
    if shuffle and size is not None:
        indices = indices.shuffle(seed=seed % 2**32)
    if repeat and size is not None:
        indices = indices.repeat()
    tasks = indices[index::count].map(lambda i: _with_budget(source.task(split, int(i), seed), budget))
    return iter(tasks.to_iter_dataset(grain.ReadOptions(num_threads=0)))


def first_tasks(
    source: TaskSource,
    split: str,
    count: int,
    *,
    seed: int,
    budget: Budget | None = None,
    shard: tuple[int, int] = (0, 1),
) -> list[Task]:
    """This process's share of the first tasks of a split, in order: the same held-out tasks at every evaluation.

    Raises:
        ValueError: If the split has fewer tasks.
    """
    size = source.size(_checked(split))
    if size is not None and count > size:
        raise ValueError(f"asked for {count} {split!r} tasks, but there are {size}.")
    return [_with_budget(source.task(split, index, seed), budget) for index in range(count)][shard[0] :: shard[1]]


def _with_budget(task: Task, budget: Budget | None) -> Task:
    return task if budget is None else dataclasses.replace(task, budget=budget)


def _task(name: str, data: Mapping[str, Any], entropy: list[int]) -> Task:
    seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    return Task(id=name, group=name, seed=seed, data=data)


def _checked(split: str) -> str:
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; splits are {', '.join(map(repr, SPLITS))}.")
    return split


def _key(data: Mapping[str, Any]) -> str:
    return json.dumps(data, sort_keys=True)

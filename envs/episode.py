"""One episode's life: reset once, step to the end, close. An environment fills in how it begins and how it answers."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from agentjax.envs.api import Action, EnvSpec, Reset, Score, Step, Task, TaskSource


@dataclasses.dataclass(frozen=True)
class NoArgs:
    """An environment without arguments."""


class Episode:
    """A step environment (`agentjax.envs.api.Env`) of one episode.

    A subclass sets `spec`, gives its tasks in `source`, and fills in `begin` and `answer`. It may set `Args`, a frozen
    dataclass whose fields are the environment's arguments, with defaults and checks, and `players`, its scripted
    policies by name; each is built from a seed.

    Args:
        sandboxes: A `SandboxPool`, for environments that need one.
        **args: Fields of `Args`.
    """

    spec: EnvSpec
    Args: ClassVar[type] = NoArgs
    players: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, *, sandboxes: Any = None, **args: Any):
        self.sandboxes = sandboxes
        self.args = self.Args(**args)
        self.turns = 0
        self._task: Task | None = None
        self._phase = "new"

    @classmethod
    def source(cls, args: Any) -> TaskSource:
        """The tasks, given the arguments (an instance of `Args`)."""
        raise NotImplementedError(f"{cls.__name__}.source must give the tasks.")

    async def begin(self, task: Task) -> Reset:
        """Sets the task up."""
        raise NotImplementedError

    async def answer(self, action: Action) -> Step:
        """Answers one turn. On the last turn (`is_last_turn`) the step must carry a reward."""
        raise NotImplementedError

    @property
    def task(self) -> Task:
        """The task being played."""
        if self._task is None:
            raise RuntimeError(f"{type(self).__name__} has no task before reset.")
        return self._task

    @property
    def is_last_turn(self) -> bool:
        """Whether the budget has no turn left after this one."""
        return self.turns >= self.task.budget.max_turns

    async def reset(self, task: Task) -> Reset:
        """Begins the episode.

        Raises:
            RuntimeError: If this instance already played or was closed: make a new one for every episode.
        """
        if self._phase != "new":
            raise RuntimeError(
                f"{type(self).__name__}.reset: this instance is {self._phase}; make a new one an episode."
            )
        self._task, self._phase = task, "broken"
        start = await self.begin(task)
        self._phase = "live"
        return start

    async def step(self, action: Action) -> Step:
        """Answers one turn; the turn at `budget.max_turns` is the last.

        Raises:
            RuntimeError: Before reset, after the end, and after close.
        """
        if self._phase != "live":
            raise RuntimeError(f"{type(self).__name__}.step: call reset first; this instance is {self._phase}.")
        self.turns += 1
        step = await self.answer(action)
        if self.is_last_turn and not step.terminated and step.error is None:
            step = dataclasses.replace(step, truncated=True)
        if step.terminated or step.truncated or step.error is not None:
            self._phase = "over"
        return step

    async def score(self) -> Score | None:
        """None: the steps carry the reward."""
        return None

    async def snapshot(self) -> bytes | None:
        """None: an episode resumes by playing its recorded turns again."""
        return None

    async def restore(self, state: bytes) -> None:
        """Unsupported; see `snapshot`."""
        raise RuntimeError(f"{type(self).__name__} has no snapshots; play the recorded turns again.")

    async def close(self) -> None:
        """Ends the episode. May be called at any time, and again."""
        self._phase = "closed"

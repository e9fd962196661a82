"""Rollout phase: parameters in, completed groups out: the main thread samples while the host thread plays."""

from collections.abc import Callable, Sequence

from agentjax.envs.api import Task
from agentjax.models.decoder import Params
from agentjax.rollout.engine import Engine
from agentjax.rollout.groups import Group, Rollouts
from agentjax.rollout.host import HostLoop
from agentjax.rollout.pending import PendingGroup


class RolloutPhase:
    """Groups of episodes on the host loop, driven by the engine on the devices; for the thread that owns those."""

    def __init__(self, host: HostLoop, engine: Engine, make_rollouts: Callable[[], Rollouts]):
        """Open a set of groups.

        Args:
            host: Where episodes live.
            engine: Samples their turns.
            make_rollouts: Gives the groups; called on the host loop.
        """
        self._host = host
        self._engine = engine

        async def make() -> Rollouts:
            return make_rollouts()

        self._rollouts = host.call(make())

    def __enter__(self) -> "RolloutPhase":
        return self

    def __exit__(self, *exc_info) -> None:
        self._host.call(self._rollouts.close())

    @property
    def open(self) -> int:
        """Groups submitted and not yet received."""
        return self._rollouts.open

    @property
    def next_group(self) -> int:
        """Number of the group submitted next."""
        return self._rollouts.next_index

    def submit(self, task: Task, group_size: int) -> None:
        """Begin a group."""

        async def submit() -> None:
            self._rollouts.submit(task, group_size)

        self._host.call(submit())

    def resume(self, next_group: int, pending: Sequence[PendingGroup]) -> None:
        """Go on with the groups of an earlier process."""

        async def resume() -> None:
            self._rollouts.next_index = next_group
            for group in pending:
                self._rollouts.resume(group)

        self._host.call(resume())

    def wait(
        self, count: int, params: Params, *, interrupted: Callable[[], bool] = lambda: False
    ) -> tuple[Group, ...] | None:
        """Sample until so many groups are complete.

        Args:
            count: Groups to wait for.
            params: The policy.
            interrupted: Whether somebody asked to stop; called often, from callbacks.

        Returns:
            The groups, or None if it was interrupted before they were complete.
        """
        future = self._host.start(self._rollouts.wait(count))
        future.add_done_callback(lambda _: self._engine.notify())
        self._engine.run(params, lambda: future.done() or interrupted())
        if not future.done():
            future.cancel()
            return None
        return future.result()

    def pending(self) -> tuple[PendingGroup, ...]:
        """Every group not yet received, with the tokens of the turns under way."""

        async def pending() -> tuple[PendingGroup, ...]:
            return self._rollouts.pending(self._engine.under_way)

        return self._host.call(pending())

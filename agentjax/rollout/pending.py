"""Pending groups: the unfinished work of a rollout in, JSON values for a checkpoint out, and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from agentjax.envs.api import Budget, Task
from agentjax.rollout.progress import InFlight
from agentjax.trajectory import Trajectory
from agentjax.trajectory_file import trajectory_from_json, trajectory_to_json


@dataclasses.dataclass(frozen=True)
class PendingGroup:
    """A group that nobody has received yet, enough to go on with it after a restart.

    Attributes:
        index: Number of the group in the run.
        task: What is played.
        group_size: Samples it will have.
        finished: Rows of the samples that ended, by sample, then by branch.
        in_flight: The other samples, by sample.
    """

    index: int
    task: Task
    group_size: int
    finished: tuple[Trajectory, ...] = ()
    in_flight: tuple[InFlight, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The group as JSON values."""
        return {
            "index": self.index,
            "task": dataclasses.asdict(self.task),
            "group_size": self.group_size,
            "finished": [trajectory_to_json(row) for row in self.finished],
            "in_flight": [progress.to_json() for progress in self.in_flight],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "PendingGroup":
        """The group that `to_json` was called on."""
        task = fields["task"]
        return cls(
            index=fields["index"],
            task=Task(**task | {"budget": Budget(**task["budget"])}),
            group_size=fields["group_size"],
            finished=tuple(map(trajectory_from_json, fields["finished"])),
            in_flight=tuple(map(InFlight.from_json, fields["in_flight"])),
        )

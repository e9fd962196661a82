"""Samples: one place in a group in, its trajectories out, after as many episodes as faults make necessary."""

import dataclasses
import hashlib
from collections.abc import Callable

from agentjax.rollout.episodes import Episode
from agentjax.rollout.progress import Diverged, InFlight
from agentjax.rollout.request import TurnRequest
from agentjax.trajectory import Segment, Trajectory


def trajectory_seed(run_seed: int, group_index: int, sample_index: int) -> int:
    """Sampling seed of an episode, a uint32: the first four bytes, little-endian, of BLAKE2s of "run/group/sample"."""
    name = f"{run_seed}/{group_index}/{sample_index}".encode()
    return int.from_bytes(hashlib.blake2s(name, digest_size=4).digest(), "little")


class Sample:
    """Plays an episode, and plays it again from the start, with the same seed, when the infrastructure failed.

    Attributes:
        progress: Who the sample is, and how far it came before a restart.
    """

    def __init__(self, new_episode: Callable[[InFlight], Episode], progress: InFlight, *, retries: int):
        """Prepare to play.

        Args:
            new_episode: Makes an episode of this sample, with an environment of its own.
            progress: Where to begin.
            retries: Episodes after the first one, if a fault may pass.
        """
        self.progress = progress
        self._new_episode = new_episode
        self._retries = retries
        self._episode: Episode | None = None

    async def run(self) -> tuple[Trajectory, ...]:
        """Play until an episode ends without a fault, or the retries are used up.

        Returns:
            Its rows. Their metrics say how often it was played again (`retries`), and whether the environment no
            longer answered as recorded (`replay_diverged`), if so.
        """
        events = {"retries": 0.0, "replay_diverged": 0.0}
        while True:
            self._episode = self._new_episode(self.progress)
            try:
                rows = await self._episode.run()
            except Diverged:
                events["replay_diverged"] += 1
                self.progress = dataclasses.replace(self.progress, segments=(), partial=None)
                continue
            fault = self._episode.fault
            if fault is None or not fault.retryable or events["retries"] >= self._retries:
                return _with_metrics(rows, {name: count for name, count in events.items() if count})
            events["retries"] += 1

    def in_flight(self, under_way: Callable[[TurnRequest], Segment | None]) -> InFlight:
        """How far the sample came.

        Args:
            under_way: The tokens sampled so far for a request the sampler is busy with, if they are to be kept.
        """
        if self._episode is None:
            return self.progress
        progress = self._episode.in_flight()
        tokens = under_way(self._episode.waiting) if self._episode.waiting is not None else None
        return progress if tokens is None else dataclasses.replace(progress, partial=tokens)


def _with_metrics(rows: tuple[Trajectory, ...], more: dict[str, float]) -> tuple[Trajectory, ...]:
    return tuple(dataclasses.replace(row, metrics={**row.metrics, **more}) for row in rows)

"""Progress of an episode: the segments so far in, a JSON record out, and the same episode again from such a record."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentjax.trajectory import Segment, Source
from agentjax.trajectory_file import segment_from_json, segment_to_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class InFlight:
    """An unfinished episode, enough to play it again up to where it stood.

    Attributes:
        task_id: Task it plays.
        group_id: Its group.
        sample_index: Position within the group.
        seed: Sampling seed of the episode.
        segments: Everything inserted and sampled, branches one after the other; a new branch begins with a prompt.
        partial: Policy tokens of the turn that was being sampled, if any were.
    """

    task_id: str
    group_id: str
    sample_index: int
    seed: int
    segments: tuple[Segment, ...] = ()
    partial: Segment | None = None

    def to_json(self) -> dict[str, Any]:
        """The progress as JSON values; logprobs keep every bit."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {
            "segments": [segment_to_json(segment) for segment in self.segments],
            "partial": None if self.partial is None else segment_to_json(self.partial),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "InFlight":
        """The progress that `to_json` was called on."""
        partial = fields["partial"]
        segments = tuple(segment_from_json(segment) for segment in fields["segments"])
        return cls(
            **{**fields, "segments": segments, "partial": None if partial is None else segment_from_json(partial)}
        )


class Diverged(Exception):
    """The environment did not answer as it had when the record was made."""


class Tape:
    """A record read from the front: inserted segments are compared with it, sampled ones are taken from it."""

    def __init__(self, recorded: Sequence[Segment], partial: Segment | None = None):
        """Start at the first segment.

        Args:
            recorded: Segments in the order they were made; empty for a new episode.
            partial: The beginning of the turn after them.
        """
        self._segments = list(recorded)
        self._partial = partial

    @property
    def done(self) -> bool:
        """Whether everything recorded has been used."""
        return not self._segments and self._partial is None

    def compare(self, segment: Segment) -> None:
        """Check an inserted segment against the record, as far as it reaches.

        Raises:
            Diverged: If the record has something else here.
        """
        if not self._segments:
            return
        recorded = self._segments.pop(0)
        if recorded.source is not segment.source or not np.array_equal(recorded.ids, segment.ids):
            raise Diverged(f"{segment.source} segment of {len(segment.ids)} tokens differs from the recorded one")

    def turn(self) -> Segment | None:
        """The next sampled turn, None where the record ends.

        Raises:
            Diverged: If the record has no sampled turn here.
        """
        if not self._segments:
            return None
        recorded = self._segments.pop(0)
        if recorded.source is not Source.POLICY:
            raise Diverged(f"the record has a {recorded.source} segment where a turn is sampled")
        return recorded

    def partial(self) -> Segment | None:
        """The tokens already sampled of the first turn after the record; given once."""
        partial, self._partial = self._partial, None
        return partial

"""Packing: trajectories and their advantages in, fixed-shape rows of whole trajectories out."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from agentjax.trajectory import Trajectory


@dataclasses.dataclass(frozen=True)
class PackShape:
    """Fixed shape of an update's arrays, so that steps of any size run one compiled program.

    Attributes:
        microbatches: Most microbatches, M; how many are used is data.
        rows: Rows per microbatch, B.
        row_length: Tokens per row, T.
    """

    microbatches: int
    rows: int
    row_length: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """Packed tokens. All arrays share one index: entry [..., t] belongs to token t of its row.

    Attributes:
        tokens: Token ids; 0 in padding.
        segment_ids: 1, 2, ... for the trajectories of a row; 0 in padding.
        positions: Position within the trajectory, from 0; 0 in padding.
        loss_mask: True where the token is trained; its logprob is predicted from token t - 1.
        sampler_logprobs: As recorded when sampled; 0 elsewhere.
        advantages: Credit of each trained token; 0 elsewhere.
        policy_versions: Updates the weights had seen that sampled the token; -1 elsewhere.
        old_logprobs: The trainer's own logprobs before the first update of a step; None where that is this update.
    """

    tokens: Int32[Array, "*M B T"]
    segment_ids: Int32[Array, "*M B T"]
    positions: Int32[Array, "*M B T"]
    loss_mask: Bool[Array, "*M B T"]
    sampler_logprobs: Float32[Array, "*M B T"]
    advantages: Float32[Array, "*M B T"]
    policy_versions: Int32[Array, "*M B T"]
    old_logprobs: Float32[Array, "*M B T"] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedBatch:
    """Everything one update learns from.

    Attributes:
        rows: Arrays [M, B, T].
        used: Microbatches that hold anything; the first ones.
        tokens: Trained tokens.
        trajectories: Trajectories the update stands for, those without a signal included.
    """

    rows: Rows
    used: Int32[Array, ""]
    tokens: Float32[Array, ""]
    trajectories: Float32[Array, ""]


def pack(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float],
    *,
    shape: PackShape,
    represented: float | None = None,
) -> PackedBatch:
    """Lay trajectories into rows by first-fit decreasing. The same input gives the same rows.

    Args:
        trajectories: What to train on. Those with advantage 0 teach nothing and are best left out.
        advantages: One number a trajectory, given to each of its trained tokens.
        shape: Shape of the result.
        represented: Trajectories this update stands for, those left out included, which `constant_length` divides by;
            None: as many as are packed.

    Raises:
        ValueError: If a trajectory is longer than a row (it is never cut), its first token is trained (nothing precedes
            it), or all of them need more rows than there are.
    """
    for trajectory in trajectories:
        _check(trajectory, shape.row_length)
    lengths = [sum(len(segment.ids) for segment in trajectory.segments) for trajectory in trajectories]
    bins = first_fit_decreasing(lengths, capacity=shape.row_length)
    most = shape.microbatches * shape.rows
    if len(bins) > most:
        raise ValueError(
            f"{len(trajectories)} trajectories of {sum(lengths)} tokens need {len(bins)} rows of {shape.row_length}, "
            f"and an update holds {shape.microbatches} microbatches of {shape.rows} rows. Raise learner.microbatches "
            f"or learner.rows."
        )
    rows = _empty_rows(most, shape.row_length)
    for row, members in enumerate(bins):
        start = 0
        for segment, member in enumerate(members, start=1):
            _write(rows, row, start, segment, trajectories[member], advantages[member])
            start += lengths[member]
    # Arrays of NumPy, until the learner puts them on its devices.
    stacked: dict[str, Any] = {
        name: x.reshape(shape.microbatches, shape.rows, shape.row_length) for name, x in rows.items()
    }
    sizes: dict[str, Any] = {
        "used": np.int32(-(-len(bins) // shape.rows)),
        "tokens": np.float32(rows["loss_mask"].sum()),
        "trajectories": np.float32(len(trajectories) if represented is None else represented),
    }
    return PackedBatch(rows=Rows(**stacked), **sizes)


def _check(trajectory: Trajectory, row_length: int) -> None:
    name = f"Trajectory {trajectory.sample_index} of group {trajectory.group_id!r} (task {trajectory.task_id!r})"
    tokens = len(trajectory.tokens)
    if tokens > row_length:
        raise ValueError(
            f"{name} has {tokens} tokens and learner.row_length is {row_length}. Raise it or lower the budget; "
            f"trajectories are never cut."
        )
    if tokens and trajectory.loss_mask[0]:
        raise ValueError(
            f"{name} begins with a sampled token, which nothing predicts. A trajectory begins with its prompt."
        )


def first_fit_decreasing(lengths: Sequence[int], *, capacity: int) -> list[list[int]]:
    """Put each item, longest first, into the first bin with room. Returns the items of each bin.

    Ties keep the order given. At most 11/9 of the best number of bins, plus one.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = next((b for b, free in enumerate(room) if free >= lengths[item]), None)
        if fits is None:
            fits = len(bins)
            bins.append([])
            room.append(capacity)
        bins[fits].append(item)
        room[fits] -= lengths[item]
    return bins


def _empty_rows(rows: int, row_length: int) -> dict[str, np.ndarray]:
    dtypes = {
        "tokens": np.int32,
        "segment_ids": np.int32,
        "positions": np.int32,
        "loss_mask": np.bool_,
        "sampler_logprobs": np.float32,
        "advantages": np.float32,
        "policy_versions": np.int32,
    }
    empty: dict[str, np.ndarray] = {name: np.zeros((rows, row_length), dtype) for name, dtype in dtypes.items()}
    empty["policy_versions"] -= 1
    return empty


def _write(
    rows: dict[str, np.ndarray], row: int, start: int, segment: int, source: Trajectory, advantage: float
) -> None:
    tokens, loss_mask = source.tokens, source.loss_mask
    place = (row, slice(start, start + len(tokens)))
    rows["tokens"][place] = tokens
    rows["segment_ids"][place] = segment
    rows["positions"][place] = np.arange(len(tokens))
    rows["loss_mask"][place] = loss_mask
    rows["sampler_logprobs"][place] = source.sampler_logprobs
    rows["advantages"][place] = np.where(loss_mask, advantage, 0.0)
    rows["policy_versions"][place] = source.policy_versions

"""Exchange: the mailbox between the sampling program and its scheduler, one int32 array each way.

One array costs one transfer a block, whatever it carries. Rows are slots; a field is a run of columns; floats travel
as their bits. Shapes are chosen once, so nothing recompiles.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineShape:
    """Every shape of the sampling program, per shard of the mesh.

    Attributes:
        slots: Trajectories decoded side by side, S.
        block_steps: Decode steps between two exchanges, W.
        chunk: Prompt or observation tokens a slot takes in per block, C.
        prefill_rows: Slots prefilled in one forward pass; more pending slots take more passes.
        page_size: Tokens per KV page.
        pages: Pages in the pool.
        max_pages: Pages of the longest stream, M.
        pages_per_block: Pages attended in one step of the attention loop.
        stop_ids: Stop ids a request may name.
    """

    slots: int
    block_steps: int
    chunk: int
    prefill_rows: int
    page_size: int
    pages: int
    max_pages: int
    pages_per_block: int
    stop_ids: int = 4


class Mailbox:
    """Columns of an int32 array `[slots, width]`, by field name, for NumPy views and for reads under jit."""

    def __init__(self, fields: dict[str, tuple[int | None, type]]):
        """Lay out the fields in order.

        Args:
            fields: Name to (columns, `np.int32` or `np.float32`); None columns: one, which reads as a vector.
        """
        self._fields: dict[str, tuple[slice, bool, type]] = {}
        self.width = 0
        for name, (columns, dtype) in fields.items():
            end = self.width + (columns or 1)
            self._fields[name] = (slice(self.width, end), columns is None, dtype)
            self.width = end

    def views(self, buffer: Int32[np.ndarray, "S X"]) -> dict[str, np.ndarray]:
        """Writable views of the fields."""
        out = {}
        for name, (columns, single, dtype) in self._fields.items():
            field: np.ndarray = buffer[:, columns].view(dtype)
            out[name] = field[:, 0] if single else field
        return out

    def read(self, buffer: Int32[Array, "S X"]) -> dict[str, Array]:
        """The fields as traced arrays."""
        out = {}
        for name, (columns, single, dtype) in self._fields.items():
            field = buffer[:, columns]
            field = lax.bitcast_convert_type(field, jnp.float32) if dtype is np.float32 else field
            out[name] = field[:, 0] if single else field
        return out

    def write(self, fields: dict[str, Array]) -> Int32[Array, "S X"]:
        """The array that holds the given fields, which must be all of them."""
        columns = []
        for name, (_, single, dtype) in self._fields.items():
            field = fields[name]
            field = lax.bitcast_convert_type(field, jnp.int32) if dtype is np.float32 else field.astype(jnp.int32)
            columns.append(field[:, None] if single else field)
        return jnp.concatenate(columns, axis=1)


def inbox(shape: EngineShape) -> Mailbox:
    """What the scheduler tells the program before a block.

    Per slot: `active` (decode in this block), `token` and `position` to feed next, `budget` (tokens it may still
    sample), `trajectory` (sampling seed), sampling parameters, `stop_ids` (-1 pads), the page table; `chunk_len`
    tokens of `chunk` to prefill from position `chunk_start`; a page copy `copy_from` -> `copy_to` (-1: none), made
    before anything else. Listed once, in the rows from the top: `order`, the slots with a chunk; on every row: `rows`,
    their number, `leave` (end the program now) and `idle` (nothing to do here; all shards idle ends the program).
    """
    one = (None, np.int32)
    return Mailbox(
        {
            "leave": one,
            "idle": one,
            "rows": one,
            "order": one,
            "active": one,
            "token": one,
            "position": one,
            "budget": one,
            "trajectory": one,
            "temperature": (None, np.float32),
            "top_k": one,
            "top_p": (None, np.float32),
            "copy_from": one,
            "copy_to": one,
            "chunk_start": one,
            "chunk_len": one,
            "stop_ids": (shape.stop_ids, np.int32),
            "chunk": (shape.chunk, np.int32),
            "page_table": (shape.max_pages, np.int32),
        }
    )


def outbox(shape: EngineShape) -> Mailbox:
    """What the program tells the scheduler after a block.

    Per slot: `count` tokens sampled, the `tokens` and their `logprobs`, `stopped` (a stop id was sampled or the budget
    is used up); on every row `ran` (0: the block before was not executed, its inbox is void).
    """
    steps = shape.block_steps
    return Mailbox(
        {
            "ran": (None, np.int32),
            "count": (None, np.int32),
            "stopped": (None, np.int32),
            "tokens": (steps, np.int32),
            "logprobs": (steps, np.float32),
        }
    )

"""Attention: queries, keys and values in, mixed values out; over packed rows, or over the pages of a KV cache.

Plain XLA, on any backend. Scores and sums are in f32.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

_MASKED = -1e30


def packed_causal_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
) -> Float[Array, "B T N H"]:
    """Attend within each segment of a row, to tokens at the same position or before.

    Args:
        q: Queries; each key-value head serves N / K of them.
        k: Keys.
        v: Values.
        segment_ids: Which trajectory a token belongs to; 0 is padding, whose output means nothing.
        positions: Position of a token within its trajectory.
    """
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    seen = same & (positions[:, None, :] <= positions[:, :, None])
    scores = _scores(_group(q, k.shape[2]), k)
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, _MASKED), axis=-1).astype(v.dtype)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v).reshape(q.shape)


def paged_attention(
    q: Float[Array, "B C N H"],
    k_pages: Float[Array, "P S K H"],
    v_pages: Float[Array, "P S K H"],
    page_table: Int[Array, "B M"],
    positions: Int[Array, "B C"],
    *,
    pages_per_block: int,
) -> Float[Array, "B C N H"]:
    """Attend to the pages of each stream, up to and including each query's own position.

    Softmax is computed online over blocks of pages, as many as the longest stream here needs. A block that lies wholly
    beyond a query adds exact zeros, so the company of a stream does not change its result by a bit.

    Source: online softmax, arXiv:1805.02867; paged KV cache, arXiv:2309.06180.

    Args:
        q: Queries of C tokens a stream.
        k_pages: Key pages of S tokens.
        v_pages: Value pages.
        page_table: Pages of each stream in order; entries beyond its length mean nothing.
        positions: Position of each query in its stream.
        pages_per_block: Pages a block.
    """
    page_size, kv_heads = k_pages.shape[1:3]
    block = pages_per_block * page_size
    table = jnp.pad(page_table, ((0, 0), (0, -page_table.shape[1] % pages_per_block)))
    grouped = _group(q, kv_heads)

    def attend_block(index, carry):
        peak, total, mixed = carry
        pages = lax.dynamic_slice_in_dim(table, index * pages_per_block, pages_per_block, axis=1)
        k, v = _load(k_pages, pages), _load(v_pages, pages)
        seen = index * block + jnp.arange(block) <= positions[..., None]
        scores = jnp.where(seen[:, None, None], _scores(grouped, k), _MASKED)
        new_peak = jnp.maximum(peak, scores.max(axis=-1))
        weights, kept = jnp.exp(scores - new_peak[..., None]), jnp.exp(peak - new_peak)
        added = jnp.einsum("bkgcs,bskh->bkgch", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return new_peak, total * kept + weights.sum(axis=-1), mixed * kept[..., None] + added

    rows = (q.shape[0], kv_heads, q.shape[2] // kv_heads, q.shape[1])
    start = (jnp.full(rows, _MASKED), jnp.zeros(rows), jnp.zeros((*rows, q.shape[3])))
    _, total, mixed = lax.fori_loop(0, positions.max() // block + 1, attend_block, start)
    return jnp.moveaxis(mixed / total[..., None], 3, 1).reshape(q.shape).astype(q.dtype)


def write_pages(
    pages: Float[Array, "P S K H"],
    values: Float[Array, "B C K H"],
    page_table: Int[Array, "B M"],
    positions: Int[Array, "B C"],
    valid: Bool[Array, "B C"],
) -> Float[Array, "P S K H"]:
    """Write keys or values of new tokens to their pages; lanes not valid or beyond the table write nothing."""
    page_size, columns = pages.shape[1], page_table.shape[1]
    column = positions // page_size
    page = jnp.take_along_axis(page_table, jnp.minimum(column, columns - 1), axis=1)
    page = jnp.where(valid & (column < columns), page, pages.shape[0])
    return pages.at[page, positions % page_size].set(values, mode="drop")


def _group(q: Float[Array, "B C N H"], kv_heads: int) -> Float[Array, "B C K G H"]:
    """Scaled queries, by the key-value head that serves them."""
    scaled = q * q.shape[-1] ** -0.5
    return scaled.reshape(*q.shape[:2], kv_heads, -1, q.shape[-1])


def _scores(grouped: Float[Array, "B C K G H"], k: Float[Array, "B S K H"]) -> Float[Array, "B K G C S"]:
    return jnp.einsum("bckgh,bskh->bkgcs", grouped, k, preferred_element_type=jnp.float32)


def _load(pages: Float[Array, "P S K H"], wanted: Int[Array, "B W"]) -> Float[Array, "B WS K H"]:
    found = jnp.take(pages, wanted, axis=0, mode="clip")
    return found.reshape(wanted.shape[0], -1, *pages.shape[2:])

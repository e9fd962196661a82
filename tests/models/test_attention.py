"""Paged attention against attention over whole streams, and pages as the sampler fills them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.models.attention import packed_causal_attention, paged_attention, write_pages

B, T, N, K, H, PAGE = 3, 22, 4, 2, 8, 4
PAGES = B * 6


_write = jax.jit(write_pages)
_read = jax.jit(paged_attention, static_argnames="pages_per_block")


def streams(seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(B, T, heads, H)).astype(np.float32) for heads in (N, K, K))
    table = rng.permutation(PAGES).reshape(B, 6).astype(np.int32)
    return q, k, v, jnp.asarray(table)


def filled(values, table, chunk=T):
    """Pages holding every stream, written in chunks."""
    pages = jnp.full((PAGES, PAGE, K, H), jnp.nan)
    for start in range(0, T, chunk):
        positions = jnp.broadcast_to(start + jnp.arange(chunk), (B, chunk))
        part = np.zeros((B, chunk, K, H), np.float32)
        part[:, : len(values[0, start : start + chunk])] = values[:, start : start + chunk]
        pages = _write(pages, jnp.asarray(part), table, positions, positions < T)
    return jnp.nan_to_num(pages, nan=1e3)  # what was never written must never be seen


@pytest.mark.parametrize(("pages_per_block", "chunk"), [(1, 5), (2, 1), (4, T), (6, 4), (9, 7)])
def test_pages_give_what_whole_streams_give(pages_per_block, chunk):
    q, k, v, table = streams()
    positions = jnp.broadcast_to(jnp.arange(T), (B, T))
    want = packed_causal_attention(q, k, v, jnp.ones((B, T), int), positions)
    got = _read(q, filled(k, table, chunk), filled(v, table, chunk), table, positions, pages_per_block=pages_per_block)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("pages_per_block", [1, 2])
def test_longer_company_does_not_change_a_bit(pages_per_block, dtype):
    q, k, v, table = streams()
    q, k_pages, v_pages = (x.astype(dtype) for x in (jnp.asarray(q), filled(k, table), filled(v, table)))
    read = lambda positions: _read(q[:, :1], k_pages, v_pages, table, positions, pages_per_block=pages_per_block)
    for position in (0, 3, 4, 9, 15):
        alone = read(jnp.full((B, 1), position))
        together = read(jnp.array([[position], [T - 1], [0]]))
        np.testing.assert_array_equal(alone[0], together[0])


def test_entries_beyond_a_stream_mean_nothing():
    q, k, v, table = streams()
    pages, positions = (filled(k, table), filled(v, table)), jnp.full((B, 1), 9)
    want = _read(q[:, :1], *pages, table, positions, pages_per_block=2)
    for other in (0, 5, 10**6, -1):
        changed = table.at[:, 9 // PAGE + 1 :].set(other)
        np.testing.assert_array_equal(_read(q[:, :1], *pages, changed, positions, pages_per_block=2), want)


def test_lanes_that_are_not_valid_write_nothing():
    pages = jnp.zeros((PAGES, PAGE, K, H))
    _, k, _, table = streams()
    valid = jnp.zeros((B, T), bool).at[1, :3].set(True)
    written = write_pages(pages, jnp.asarray(k), table, jnp.broadcast_to(jnp.arange(T), (B, T)), valid)
    np.testing.assert_array_equal(written[table[1, 0], :3], k[1, :3])
    assert int((written != 0).any((-1, -2)).sum()) == 3


def test_a_token_beyond_the_table_overwrites_nothing():
    table = jnp.arange(PAGES, dtype=jnp.int32).reshape(B, 6)
    values, end = jnp.ones((B, 1, K, H)), jnp.full((B, 1), 6 * PAGE)
    written = write_pages(jnp.zeros((PAGES, PAGE, K, H)), values, table, end, jnp.ones((B, 1), bool))
    assert not written.any()


def test_attention_equals_a_loop():
    q, k, v, _ = streams(1)
    segments = np.array([[1] * 10 + [2] * 12, [1] * 22, [1] * 5 + [0] * 17])
    positions = np.array([[*range(10), *range(12)], [*range(22)], [*range(22)]])
    got = packed_causal_attention(q, k, v, jnp.asarray(segments), jnp.asarray(positions))
    for b, t, n in [(0, 9, 0), (0, 10, 1), (0, 21, 3), (1, 21, 2), (2, 4, 0)]:
        seen = [s for s in range(t + 1) if segments[b, s] == segments[b, t]]
        scores = k[b, seen, n // 2] @ q[b, t, n] / np.sqrt(H)
        weights = np.exp(scores - scores.max())
        np.testing.assert_allclose(got[b, t, n], weights / weights.sum() @ v[b, seen, n // 2], atol=1e-5)

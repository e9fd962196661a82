"""Prefill in chunks, then decoding token by token, against one forward pass over whole streams."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from agentjax.models import decoder
from agentjax.models.attention import packed_causal_attention, paged_attention, write_pages
from agentjax.models.config import ModelConfig
from agentjax.sharding.mesh import MeshConfig, make_mesh
from agentjax.sharding.rules import SAMPLER_RULES, specs

CONFIG = ModelConfig(vocab_size=24, num_layers=2, d_model=8, num_heads=4, num_kv_heads=2, head_dim=4, d_ff=12)
B, T, CHUNK, PAGE, COLUMNS = 3, 17, 5, 4, 5
LENGTHS = np.array([13, 4, 9])  # prefilled of each stream; the rest is decoded
PAGES = B * COLUMNS


@pytest.fixture(scope="module")
def params():
    shapes = jax.eval_shape(functools.partial(decoder.init_params, CONFIG), jax.random.key(0))
    noise = np.random.default_rng(2)
    return jax.tree.map(lambda x: 0.5 * noise.normal(size=x.shape).astype(x.dtype), shapes)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(0, CONFIG.vocab_size, (B, T))


@pytest.fixture(scope="module")
def whole(params, tokens):
    positions, ones = jnp.broadcast_to(jnp.arange(T), (B, T)), jnp.ones((B, T), jnp.int32)

    @jax.jit
    def run(params):
        attend = lambda q, k, v, layer, state: (packed_causal_attention(q, k, v, ones, positions), state)
        hidden, _ = decoder.hidden_states(params, jnp.asarray(tokens), positions, config=CONFIG, attend=attend)
        return decoder.logits(params, hidden, config=CONFIG)

    return run(params)


def step(params, pages, tokens, positions, valid, table, shard=None):
    """Logits of new tokens, and the pages with them; every layer has PAGES of its own in one pool."""

    def attend(q, k, v, layer, pages):
        own = table + layer * PAGES
        keys, values = (write_pages(p, x, own, positions, valid) for p, x in zip(pages, (k, v), strict=True))
        return paged_attention(q, keys, values, own, positions, pages_per_block=2), (keys, values)

    hidden, pages = decoder.hidden_states(
        params, tokens, positions, config=CONFIG, attend=attend, state=pages, shard=shard
    )
    scores = decoder.logits(params, hidden, config=CONFIG)
    return jax.lax.all_gather(scores, shard.axis, axis=-1, tiled=True) if shard else scores, pages


def unrolled(params, *rest):
    return step(decoder.unstack_layers(params), *rest)


def sharded(params, pages, *rest):
    """Each device holds half of the heads, features, vocabulary and pages' heads."""
    mesh, pool = make_mesh(MeshConfig(tensor=2)), PartitionSpec(None, None, "tensor", None)
    layout = (specs(decoder.param_axes(CONFIG), SAMPLER_RULES), (pool, pool), *[PartitionSpec()] * len(rest))
    local = functools.partial(step, shard=decoder.TensorShard("tensor"))
    out = (PartitionSpec(), (pool, pool))
    return jax.shard_map(local, mesh=mesh, in_specs=layout, out_specs=out, check_vma=False)(params, pages, *rest)


@pytest.mark.parametrize("run", [step, unrolled, sharded])
def test_chunks_then_single_tokens_equal_one_forward_pass(run, params, tokens, whole):
    pages = tuple(jnp.full((CONFIG.num_layers * PAGES, PAGE, CONFIG.num_kv_heads, CONFIG.head_dim), 7.0) for _ in "kv")
    table = jnp.asarray(np.random.default_rng(1).permutation(PAGES).reshape(B, COLUMNS))
    got, seen, feed = np.zeros((B, T, CONFIG.vocab_size)), np.zeros(B, int), jax.jit(run)
    while (seen < T).any():
        prefilling = (seen < LENGTHS).any()
        ends = np.minimum(seen + CHUNK, LENGTHS) if prefilling else np.minimum(seen + 1, T)
        positions = seen[:, None] + np.arange(CHUNK if prefilling else 1)
        valid = positions < ends[:, None]
        positions = np.where(valid, positions, 0)
        scores, pages = feed(
            params, pages, np.where(valid, tokens[np.arange(B)[:, None], positions], 0), positions, valid, table
        )
        got[np.nonzero(valid)[0], positions[valid]] = np.asarray(scores)[valid]
        seen = np.maximum(seen, ends)
    np.testing.assert_allclose(got, whole, atol=1e-4)

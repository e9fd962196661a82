"""Shape annotations are true: the modules imported again with every one checked."""

import importlib
import sys
import types

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

import agentjax.models

NAMES = ("config", "layers", "attention", "decoder")


@pytest.fixture
def models(monkeypatch):
    """agentjax.models, checked; the plain modules come back after the test."""
    for name in NAMES:
        monkeypatch.delitem(sys.modules, f"agentjax.models.{name}", raising=False)
        monkeypatch.setattr(agentjax.models, name, None, raising=False)
    with jaxtyping.install_import_hook("agentjax.models", "beartype.beartype"):
        return types.SimpleNamespace(**{name: importlib.import_module(f"agentjax.models.{name}") for name in NAMES})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_annotations_hold_through_the_decoder(models, dtype):
    sizes = {
        "vocab_size": 11,
        "num_layers": 2,
        "d_model": 6,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "d_ff": 10,
    }
    config = models.config.ModelConfig(**sizes, dtype=dtype)
    table = jnp.arange(6, dtype=jnp.int32).reshape(2, 3)
    tokens, positions = jnp.zeros((2, 5), jnp.int32), jnp.broadcast_to(jnp.arange(5), (2, 5))

    def attend(q, k, v, layer, pages):
        write = lambda pool, x: models.attention.write_pages(pool, x, table, positions, tokens == 0)
        keys, values = write(pages[0], k), write(pages[1], v)
        models.attention.packed_causal_attention(q, k, v, tokens + 1, positions)
        return models.attention.paged_attention(q, keys, values, table, positions, pages_per_block=2), (keys, values)

    @jax.eval_shape
    def run():
        params = models.decoder.init_params(config, jax.random.key(0))
        pool = jnp.zeros((6, 2, 2, 8), dtype)
        hidden, _ = models.decoder.hidden_states(
            params, tokens, positions, config=config, attend=attend, state=(pool, pool)
        )
        return hidden, models.decoder.logits(params, hidden, config=config)

    hidden, scores = run
    assert (hidden.shape, hidden.dtype) == ((2, 5, 6), dtype)
    assert (scores.shape, scores.dtype) == ((2, 5, 11), jnp.float32)


def test_a_wrong_shape_is_caught(models):
    q, ids = jnp.zeros((2, 5, 4, 8)), jnp.zeros((2, 5), jnp.int32)
    with pytest.raises(jaxtyping.TypeCheckError):
        models.attention.packed_causal_attention(q, q[:, :4], q, ids, ids)

"""Chunked logprobs against a full softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.learn.logprobs import token_logprobs
from agentjax.models import decoder


@pytest.fixture(scope="module")
def case(tiny_model):
    params = jax.jit(decoder.init_params, static_argnums=0)(tiny_model, jax.random.key(0))
    hidden = jax.random.normal(jax.random.key(1), (3, 8, tiny_model.d_model))
    tokens = jax.random.randint(jax.random.key(2), (3, 8), 0, tiny_model.vocab_size)
    return params, hidden, tokens


@pytest.mark.parametrize("chunk", [None, 1, 4, 8])
def test_each_token_is_predicted_from_the_state_before_it(case, tiny_model, chunk):
    params, hidden, tokens = case
    got = token_logprobs(params, hidden, tokens, config=tiny_model, temperature=0.7, chunk=chunk)
    policy = np.asarray(jax.nn.log_softmax(decoder.logits(params, hidden, config=tiny_model) / 0.7))
    for b, t in np.ndindex(3, 8):
        want = policy[b, t - 1, tokens[b, t]] if t else 0.0
        entropy = -(np.exp(policy[b, t - 1]) * policy[b, t - 1]).sum() if t else 0.0
        np.testing.assert_allclose(got.logprobs[b, t], want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got.entropy[b, t], entropy, rtol=1e-5, atol=1e-6)


def test_chunks_change_no_gradient(case, tiny_model):
    params, hidden, tokens = case

    def total(params, hidden, chunk):
        return token_logprobs(params, hidden, tokens, config=tiny_model, chunk=chunk).logprobs.sum()

    whole = jax.grad(total, argnums=(0, 1))(params, hidden, None)
    chunked = jax.grad(total, argnums=(0, 1))(params, hidden, 2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), whole, chunked)


def test_logits_of_a_whole_row_never_exist(case, tiny_model):
    params, hidden, tokens = case
    loss = jax.grad(lambda p: token_logprobs(p, hidden, tokens, config=tiny_model, chunk=2).logprobs.sum())
    shapes = str(jax.make_jaxpr(loss)(params))
    assert f"f32[3,2,{tiny_model.vocab_size}]" in shapes
    assert f"f32[3,8,{tiny_model.vocab_size}]" not in shapes


def test_entropy_has_no_gradient(case, tiny_model):
    params, hidden, tokens = case
    gradient = jax.grad(lambda h: token_logprobs(params, h, tokens, config=tiny_model).entropy.sum())(hidden)
    assert not jnp.any(gradient)

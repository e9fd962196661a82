"""Sampling against the distribution computed in NumPy by sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.rollout.sampling import draw_keys, sample

VOCAB, DRAWS = 300, 20_000


def filtered(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution to draw from, by sorting."""
    scaled = logits.astype(np.float64) / (temperature or 1.0)
    p = np.exp(scaled - scaled.max())
    order = np.argsort(-p)
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    if top_p < 1:
        p[order[np.searchsorted(np.cumsum(p[order]), top_p) + 1 :]] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.0, 0, 0.5), (1.3, 20, 0.7), (1.0, 1, 1.0)]
)
def test_draws_follow_the_filtered_distribution(temperature, top_k, top_p):
    logits = np.random.default_rng(0).normal(size=VOCAB).astype(np.float32) * 2
    want = filtered(logits, temperature, top_k, top_p)
    keys = jax.random.split(jax.random.key(1), DRAWS)
    full = lambda x, dtype: jnp.full(DRAWS, x, dtype)
    tokens, logprobs = jax.jit(sample)(
        jnp.broadcast_to(logits, (DRAWS, VOCAB)), keys, full(temperature, "f4"), full(top_k, "i4"), full(top_p, "f4")
    )
    tokens = np.asarray(tokens)
    assert (want[tokens] > 0).all()
    np.testing.assert_allclose(np.exp(logprobs), want[tokens], rtol=1e-5)
    observed = np.bincount(tokens, minlength=VOCAB)
    expected = DRAWS * want
    enough = expected > 5
    chi2 = ((observed - expected)[enough] ** 2 / expected[enough]).sum()
    assert chi2 < enough.sum() + 5 * np.sqrt(2 * enough.sum())


def test_temperature_zero_takes_the_likeliest_token_and_rows_have_parameters_of_their_own():
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(2, VOCAB)), jnp.float32)
    keys = jax.random.split(jax.random.key(0), 2)
    tokens, logprobs = sample(logits, keys, jnp.array([0.0, 1.0]), jnp.array([0, 1]), jnp.array([1.0, 0.3]))
    np.testing.assert_array_equal(tokens, logits.argmax(-1))
    np.testing.assert_allclose(logprobs, [jax.nn.log_softmax(logits)[0].max(), 0.0], atol=1e-6)


def test_a_filtered_row_leaves_the_others_as_they_were():
    logits = jnp.asarray(np.random.default_rng(2).normal(size=(8, VOCAB)), jnp.float32)
    keys = jax.random.split(jax.random.key(3), 8)
    plain = sample(logits, keys, jnp.ones(8), jnp.zeros(8, int), jnp.ones(8))
    mixed = sample(logits, keys, jnp.ones(8), jnp.zeros(8, int).at[0].set(3), jnp.ones(8))
    np.testing.assert_array_equal(plain[0][1:], mixed[0][1:])
    np.testing.assert_array_equal(plain[1][1:], mixed[1][1:])


def test_a_key_depends_on_trajectory_and_position_alone():
    keys = draw_keys(jax.random.key(0), jnp.array([5, 5, 6], jnp.uint32), jnp.array([3, 4, 3]))
    again = draw_keys(jax.random.key(0), jnp.array([6, 1, 5], jnp.uint32), jnp.array([3, 1, 3]))
    data, data_again = jax.random.key_data(keys), jax.random.key_data(again)
    np.testing.assert_array_equal(data[0], data_again[2])
    np.testing.assert_array_equal(data[2], data_again[0])
    assert len({tuple(row) for row in np.asarray(data).tolist()}) == 3

"""Losses against scalar loops, and KL estimators against enumeration of a small vocabulary."""

import math

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentjax.learn import losses

logs = hnp.arrays(np.float32, 6, elements=st.floats(-2, 2, width=32))
CLIP = {"clip_low": 0.2, "clip_high": 0.28}


@given(logs, logs)
def test_clipped_surrogate_is_the_formula(log_ratio, advantages):
    want = []
    for x, a in zip(log_ratio, advantages, strict=True):
        rho = math.exp(x)
        want.append(-min(rho * a, min(max(rho, 0.8), 1.28) * a))
    got = losses.clipped_surrogate(jnp.asarray(log_ratio), jnp.asarray(advantages), **CLIP)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [
        (1.27, 1.0, False),
        (1.29, 1.0, True),
        (0.5, 1.0, False),
        (0.79, -1.0, True),
        (0.81, -1.0, False),
        (2.0, -1.0, False),
    ],
)
def test_the_clip_removes_the_gradient_on_the_far_side_only(ratio, advantage, clipped):
    x, a = jnp.log(ratio), jnp.float32(advantage)
    gradient = jax.grad(lambda x: losses.clipped_surrogate(x, a, **CLIP))(x)
    assert bool(losses.is_clipped(x, a, **CLIP)) == clipped
    assert float(gradient) == pytest.approx(0.0 if clipped else -ratio * advantage, rel=1e-5)


def test_importance_weight_is_cut_at_the_cap_and_constant_for_the_gradient():
    x = jnp.log(jnp.array([0.5, 1.5, 7.0]))
    np.testing.assert_allclose(losses.truncated_importance_weight(x, cap=2.0), [0.5, 1.5, 2.0], rtol=1e-6)
    assert not jax.grad(lambda x: losses.truncated_importance_weight(x, cap=2.0).sum())(x).any()


def _two_policies(seed, vocabulary=7):
    policy, reference = jax.nn.log_softmax(jax.random.normal(jax.random.key(seed), (2, vocabulary)))
    return policy, reference


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_average_to_the_kl(name):
    policy, reference = _two_policies(0)
    kl = jnp.sum(jnp.exp(policy) * (policy - reference))
    mean = jnp.sum(jnp.exp(policy) * losses.KL_ESTIMATORS[name](policy - reference))
    np.testing.assert_allclose(mean, kl, rtol=1e-5)


def test_k2_has_the_gradient_of_the_kl_and_k1_has_none():
    policy_logits, reference = jax.random.normal(jax.random.key(1), (2, 7))
    reference = jax.nn.log_softmax(reference)

    def kl(logits):
        policy = jax.nn.log_softmax(logits)
        return jnp.sum(jnp.exp(policy) * (policy - reference))

    def expected(logits, estimator):
        policy = jax.nn.log_softmax(logits)
        return jnp.sum(jax.lax.stop_gradient(jnp.exp(policy)) * estimator(policy - reference))

    want = jax.grad(kl)(policy_logits)
    np.testing.assert_allclose(jax.grad(expected)(policy_logits, losses.k2), want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(jax.grad(expected)(policy_logits, losses.k1), jnp.zeros(7), atol=1e-6)


@given(logs)
def test_k2_and_k3_are_never_negative(log_ratio):
    rounding = 1e-7
    assert (losses.k2(jnp.asarray(log_ratio)) >= 0).all()
    assert (losses.k3(jnp.asarray(log_ratio)) >= -rounding).all()


def test_normalisers_divide_by_totals_of_the_update():
    values = jnp.array([[1.0, jnp.nan, 3.0], [5.0, 7.0, jnp.inf]])
    mask = jnp.array([[True, False, True], [True, True, False]])
    assert float(losses.token_mean(values, mask, tokens=jnp.float32(8))) == 2.0
    assert float(losses.constant_length(values, mask, trajectories=jnp.float32(2), length=4)) == 2.0
    assert float(losses.token_mean(values, mask & False, tokens=jnp.float32(0))) == 0.0

"""The optimiser against AdamW written out in NumPy, and the schedules at their corners."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentjax.learn.config import OptimizerConfig
from agentjax.learn.optimizers import decayed, make_optimizer, make_schedule

AXES = {"w": ("layers", "embed", "mlp"), "scale": ("layers", "embed"), "table": ("vocab", "embed")}


def _adamw_by_hand(params, gradients, config):
    """Two-line AdamW of the paper, applied to each gradient tree in turn."""
    m = {k: np.zeros_like(p) for k, p in params.items()}
    v = {k: np.zeros_like(p) for k, p in params.items()}
    for n, g in enumerate(gradients, start=1):
        norm = np.sqrt(sum((x**2).sum() for x in g.values()))
        for k in params:
            x = g[k] * min(1.0, config.max_grad_norm / norm)
            m[k] = config.b1 * m[k] + (1 - config.b1) * x
            v[k] = config.b2 * v[k] + (1 - config.b2) * x**2
            step = (m[k] / (1 - config.b1**n)) / (np.sqrt(v[k] / (1 - config.b2**n)) + config.eps)
            decay = config.weight_decay if k == "w" else 0.0
            params[k] = params[k] - config.learning_rate * (step + decay * params[k])
    return params


def test_is_adamw_with_clipping_and_decay_on_matrices_alone():
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.3, max_grad_norm=0.5)
    rng = np.random.default_rng(0)
    shapes = {"w": (2, 3, 4), "scale": (2, 3), "table": (5, 3)}
    params = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    gradients = [{k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()} for _ in range(3)]
    optimizer = make_optimizer(config, AXES)
    got, state = jax.tree.map(jnp.asarray, params), optimizer.init(params)
    for gradient in gradients:
        changes, state = optimizer.update(gradient, state, got)
        got = optax.apply_updates(got, changes)
    want = _adamw_by_hand(dict(params), gradients, config)
    for k in params:
        np.testing.assert_allclose(got[k], want[k], rtol=1e-4, atol=1e-5)


def test_muon_moves_matrices_by_orthogonal_steps_and_all_else_as_adamw_does():
    config = OptimizerConfig(name="muon", learning_rate=0.01, muon_rate=3.0, max_grad_norm=1e9)
    axes = {"out": ("layers", "heads", "head_dim", "embed"), "scale": ("layers", "embed"), "table": ("vocab", "embed")}
    shapes = {"out": (2, 2, 4, 8), "scale": (2, 8), "table": (5, 8)}
    rng = np.random.default_rng(0)
    gradients = {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()}
    left, right = np.linalg.qr(rng.normal(size=(2, 2, 8, 8)))[0]
    singular = np.linspace(0.2, 1.0, 8, dtype=np.float32)
    gradients["out"] = jnp.asarray((left * singular @ right).reshape(shapes["out"]), jnp.float32)
    optimizer = make_optimizer(config, axes)
    changes, _ = optimizer.update(gradients, optimizer.init(gradients), gradients)
    adamw = optax.nadamw(config.learning_rate, b1=config.b1, b2=config.b2, eps=config.eps, weight_decay=0.0)
    want, _ = adamw.update(gradients, adamw.init(gradients), gradients)
    for k in ("scale", "table"):
        np.testing.assert_allclose(changes[k], want[k], rtol=1e-5)
    spectra = np.linalg.svd(np.asarray(changes["out"]).reshape(2, 8, 8), compute_uv=False)
    # Five Newton-Schulz steps bring singular values near 1; an orthogonal n x n matrix has root mean square n ** -0.5.
    np.testing.assert_allclose(spectra, 0.01 * 3.0 * 0.2 * 8**0.5, rtol=0.4)


def test_norms_and_embeddings_do_not_decay():
    assert decayed(AXES) == {"w": True, "scale": False, "table": False}


@pytest.mark.parametrize(
    ("schedule", "want"),
    [
        ("constant", {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 50: 1.0}),
        ("linear", {0: 0.25, 3: 1.0, 4: 1.0, 8: 0.55, 12: 0.1, 50: 0.1}),
        ("cosine", {0: 0.25, 3: 1.0, 4: 1.0, 8: 0.55, 12: 0.1, 50: 0.1}),
    ],
)
def test_schedule_rises_then_follows_its_name(schedule, want):
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, schedule=schedule, decay_steps=12, end_fraction=0.1)
    rate = make_schedule(config)
    assert {n: pytest.approx(float(rate(n)), rel=1e-5) for n in want} == want

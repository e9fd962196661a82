"""The learner against a loop over unpacked trajectories, written from the formulas; and the laws of its layout."""

import dataclasses
import math

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentjax.learn.config import GRPOConfig, LearnerConfig, OptimizerConfig
from agentjax.learn.learner import Learner
from agentjax.learn.objectives import grpo_objective, sft_objective
from agentjax.learn.packing import PackShape, pack
from agentjax.models import decoder
from agentjax.sharding.mesh import MeshConfig, make_mesh

SHAPE = PackShape(microbatches=3, rows=4, row_length=16)
LAYOUT = LearnerConfig(row_length=16, rows=4)
ADAM = OptimizerConfig(learning_rate=1e-2, warmup_steps=2)
TEMPERATURE = 0.8
ONE_DEVICE, CUBE = MeshConfig(), MeshConfig(data=2, fsdp=2, tensor=2)
EVERYTHING = GRPOConfig(kl_coef=0.1, tis_cap=1.5, normalisation="constant", constant_length=9, kl_estimator="k3")


@pytest.fixture(scope="module")
def make_learner(tiny_model):
    """Makes a learner on one device; one program each, however often it is asked for."""
    known = {}

    def make(objective_config=EVERYTHING, *, mesh=ONE_DEVICE, layout=LAYOUT):
        key = (objective_config, mesh, layout)
        if key not in known:
            objective = grpo_objective(objective_config) if objective_config else sft_objective()
            count = mesh.data * mesh.fsdp * mesh.tensor
            known[key] = Learner(
                model=tiny_model,
                mesh=make_mesh(mesh, jax.devices()[:count]),
                objective=objective,
                optimizer=ADAM,
                config=layout,
                temperature=TEMPERATURE,
            )
        return known[key]

    return make


@pytest.fixture(scope="module")
def params(tiny_model):
    """Policy, old policy and reference: three different sets of parameters."""
    policy = jax.jit(decoder.init_params, static_argnums=0)(tiny_model, jax.random.key(0))

    def near(seed):
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda x: x + 0.05 * rng.normal(size=x.shape).astype(np.float32), policy)

    return policy, near(1), near(2)


@pytest.fixture(scope="module")
def sampled(trajectory):
    """Trajectories of several lengths, and their advantages."""
    return [trajectory(n, seed=n) for n in (15, 9, 8, 7, 12, 5)], [1.0, -0.5, 2.0, -0.3, -1.0, 1.7]


@pytest.fixture(scope="module")
def batch(sampled):
    return pack(*sampled, shape=SHAPE)


@pytest.fixture(scope="module")
def stale_batch(batch, make_learner, params):
    """The batch with logprobs of the old policy."""
    learner = make_learner()
    return learner.with_old_logprobs(learner.place(params[1]), batch)


@pytest.fixture(scope="module")
def policy_by_hand(tiny_model, sampled):
    """Log-policies [trajectory, T, V] by dense attention, a trajectory a row; index t predicts token t + 1."""
    tokens = np.stack([np.pad(t.tokens, (0, 16 - len(t.tokens))) for t in sampled[0]])

    def attend(q, k, v, layer, state):
        k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
        scores = jnp.einsum("bqnh,bknh->bnqk", q, k) * q.shape[-1] ** -0.5
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        return jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(jnp.where(causal, scores, -1e30)), v), state

    def log_policy(params):
        positions = jnp.broadcast_to(jnp.arange(16), tokens.shape)
        hidden, _ = decoder.hidden_states(params, jnp.asarray(tokens), positions, config=tiny_model, attend=attend)
        return jax.nn.log_softmax(decoder.logits(params, hidden, config=tiny_model) / TEMPERATURE)

    return jax.jit(log_policy)


@pytest.fixture(scope="module")
def gradients_by_hand(policy_by_hand):
    return jax.jit(lambda params, slopes: jax.vjp(policy_by_hand, params)[1](slopes)[0])


def _trained(sampled):
    """(row, t, token, advantage, sampler logprob) of each trained token."""
    for row, (trajectory, advantage) in enumerate(zip(*sampled, strict=True)):
        for t in np.flatnonzero(trajectory.loss_mask):
            yield row, t, trajectory.tokens[t], advantage, float(trajectory.sampler_logprobs[t])


def _grpo_token(new, old, ref, sampler, advantage, config):
    """Loss of one token, and its slope in the new logprob, differentiated by hand."""
    rho = math.exp(new - old)
    low, high = 1 - config.clip_low, 1 + config.clip_high
    free = rho * advantage <= min(max(rho, low), high) * advantage
    surrogate = rho * advantage if free else min(max(rho, low), high) * advantage
    weight = min(math.exp(old - sampler), config.tis_cap) if config.tis_cap else 1.0
    x = new - ref
    kl = {"k1": x, "k2": x**2 / 2, "k3": math.exp(-x) - 1 + x}[config.kl_estimator]
    kl_slope = {"k1": 1.0, "k2": x, "k3": 1 - math.exp(-x)}[config.kl_estimator]
    slope = -weight * (rho * advantage if free else 0.0) + config.kl_coef * kl_slope
    return -weight * surrogate + config.kl_coef * kl, slope


def _loss_by_hand(policy, old, reference, sampled, config):
    """The objective from log-policies, one token at a time, and its slope in each entry of `policy`."""
    loss, slopes, count = 0.0, np.zeros(policy.shape, np.float32), 0
    for row, t, token, advantage, sampler in _trained(sampled):
        new, before, ref = (float(x[row, t - 1, token]) for x in (policy, old, reference))
        of_token, slope = (-new, -1.0) if config is None else _grpo_token(new, before, ref, sampler, advantage, config)
        loss += of_token
        slopes[row, t - 1, token] += slope
        count += 1
    constant = config is not None and config.normalisation == "constant"
    divisor = config.constant_length * len(sampled[0]) if constant else count
    return loss / divisor, slopes / divisor


def _close(got, want, rtol=1e-5):
    """Equal up to `rtol` of the largest entry of each leaf."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * float(np.abs(b).max())), got, want
    )


@pytest.mark.parametrize(
    "config",
    [
        GRPOConfig(clip_low=0.1, clip_high=0.15),
        GRPOConfig(tis_cap=None, kl_coef=0.3, kl_estimator="k2"),
        EVERYTHING,
        None,
    ],
    ids=["default", "k2", "everything", "sft"],
)
def test_loss_and_gradients_are_the_formulas(
    config, make_learner, params, sampled, stale_batch, policy_by_hand, gradients_by_hand
):
    policy, _, reference = params
    learner = make_learner(config)
    gradients, metrics = learner.gradients(learner.init(policy), stale_batch, learner.place(reference))
    loss, slopes = _loss_by_hand(*(np.asarray(policy_by_hand(p)) for p in params), sampled, config)
    np.testing.assert_allclose(metrics["policy/loss"], loss, rtol=1e-5)
    _close(gradients, gradients_by_hand(policy, slopes))
    if config is not None:
        assert 0 < metrics["policy/clip_fraction"] < 1
        assert not config.tis_cap or 0 < metrics["policy/tis_fraction"] < 1


def test_metrics_are_means_and_maxima_over_trained_tokens(make_learner, params, sampled, stale_batch, policy_by_hand):
    policy, old, reference = params
    learner = make_learner()
    _, metrics = learner.gradients(learner.init(policy), stale_batch, learner.place(reference))
    new, before = (np.asarray(policy_by_hand(p)) for p in (policy, old))
    tokens = list(_trained(sampled))
    mismatch = [abs(sampler - before[row, t - 1, token]) for row, t, token, _, sampler in tokens]
    ratio = [np.exp(new[row, t - 1, token] - before[row, t - 1, token]) for row, t, token, *_ in tokens]
    entropy = [-(np.exp(new[row, t - 1]) * new[row, t - 1]).sum() for row, t, *_ in tokens]
    want = {
        "policy/mismatch": np.mean(mismatch),
        "policy/mismatch_max": np.max(mismatch),
        "policy/ratio": np.mean(ratio),
        "policy/ratio_max": np.max(ratio),
        "policy/entropy": np.mean(entropy),
        "learn/tokens": len(tokens),
    }
    assert {name: pytest.approx(float(metrics[name]), rel=1e-5) for name in want} == want


@pytest.mark.parametrize(
    "layout",
    [
        LearnerConfig(row_length=16, rows=12),
        LearnerConfig(row_length=24, rows=1),
        LearnerConfig(row_length=16, rows=4, remat=True, logprob_chunk=4),
    ],
    ids=["one microbatch", "a longer row each", "remat and chunks"],
)
def test_the_layout_changes_nothing(layout, make_learner, params, sampled, batch):
    policy, _, reference = params
    shape = PackShape(microbatches=6, rows=layout.rows, row_length=layout.row_length)
    results = [
        learner.gradients(learner.init(policy), packed, learner.place(reference))
        for learner, packed in ((make_learner(), batch), (make_learner(layout=layout), pack(*sampled, shape=shape)))
    ]
    (want, metrics), (got, others) = results
    _close(got, want)
    same = [name for name in metrics if name not in ("learn/microbatches", "learn/fill")]
    np.testing.assert_allclose([others[n] for n in same], [metrics[n] for n in same], rtol=1e-5, atol=1e-6)


def test_a_mesh_changes_nothing(make_learner, params, batch):
    policy, _, reference = params
    one, many = make_learner(), make_learner(mesh=CUBE)
    want, metrics = one.gradients(one.init(policy), batch, one.place(reference))
    got, others = many.gradients(many.init(policy), batch, many.place(reference))
    _close(got, want)
    np.testing.assert_allclose([others[n] for n in metrics], list(metrics.values()), rtol=1e-5, atol=1e-6)


def test_a_sharded_state_stays_sharded_and_learns_the_same(make_learner, params, batch):
    policy, _, reference = params
    one, many = make_learner(), make_learner(mesh=CUBE)
    states = []
    for learner in (one, many):
        state, frozen = learner.init(policy), learner.place(reference)
        for _ in range(2):
            state, _ = learner.update(state, batch, frozen)
        jax.tree.map(lambda x, a: x.sharding == a.sharding or pytest.fail(), state, learner.abstract_state)
        states.append(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), states[0].params, states[1].params)
    split = states[1].opt_state[1][0].mu["layers"]
    assert any(len(x.sharding.device_set) == 8 and not x.is_fully_replicated for x in jax.tree.leaves(split))


def test_moments_lie_as_their_parameters_whatever_the_optimiser(tiny_model):
    for name in ("adamw", "muon"):
        state = Learner(
            model=tiny_model,
            mesh=make_mesh(CUBE),
            objective=sft_objective(),
            optimizer=OptimizerConfig(name=name),
            config=LAYOUT,
        ).abstract_state
        queries = [
            leaf
            for path, leaf in jax.tree.leaves_with_path(state.opt_state)
            if "'query'" in jax.tree_util.keystr(path) and leaf.ndim == 4
        ]
        assert queries
        assert all(leaf.sharding == state.params["layers"]["attention"]["query"].sharding for leaf in queries)


@settings(max_examples=10)
@given(
    noise=hnp.arrays(np.float32, SHAPE_ARRAY := (3, 4, 16), elements=st.sampled_from([-1e30, 1.0, np.inf, np.nan])),
    ids=hnp.arrays(np.int32, SHAPE_ARRAY, elements=st.integers(0, 15)),
)
def test_tokens_that_are_not_trained_change_nothing(noise, ids, make_learner, params, stale_batch):
    learner = make_learner()
    state, reference = learner.init(params[0]), learner.place(params[2])
    rows, mask = stale_batch.rows, np.asarray(stale_batch.rows.loss_mask)
    noisy = dataclasses.replace(
        rows,
        tokens=np.where(np.asarray(rows.segment_ids) == 0, ids, rows.tokens),
        sampler_logprobs=np.where(mask, rows.sampler_logprobs, noise),
        old_logprobs=np.where(mask, rows.old_logprobs, noise),
        advantages=np.where(mask, rows.advantages, noise),
    )
    want = learner.gradients(state, stale_batch, reference)
    got = learner.gradients(state, dataclasses.replace(stale_batch, rows=noisy), reference)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_an_update_is_bitwise_repeatable_and_leaves_the_given_parameters_alone(make_learner, params, batch):
    learner = make_learner()
    reference = learner.place(params[2])
    results = [learner.update(learner.init(params[0]), batch, reference) for _ in range(2)]
    jax.tree.map(np.testing.assert_array_equal, *results)
    state, metrics = results[0]
    assert state.step == 1 and metrics["optim/lr"] == pytest.approx(ADAM.learning_rate / 2)
    assert not np.array_equal(jax.tree.leaves(state.params)[0], jax.tree.leaves(params[0])[0])


def test_steps_of_any_size_run_one_program(make_learner, params, sampled):
    learner = make_learner(GRPOConfig())
    state = learner.init(params[0])
    for count in (6, 1, 3):
        state, metrics = learner.update(state, pack(sampled[0][:count], sampled[1][:count], shape=SHAPE))
    assert learner._update._cache_size() == 1
    assert metrics["learn/microbatches"] == 1.0


def test_a_non_finite_gradient_skips_the_update_and_is_counted(make_learner, params, batch):
    learner = make_learner()
    reference = learner.place(params[2])
    rows = dataclasses.replace(batch.rows, advantages=np.where(batch.rows.loss_mask, np.nan, 0.0).astype(np.float32))
    broken = dataclasses.replace(batch, rows=rows)
    state, counts = learner.init(params[0]), []
    for one in (broken, broken, batch, broken):
        before = jax.device_get((state.params, state.opt_state, state.step))
        state, metrics = learner.update(state, one, reference)
        counts.append(float(metrics["optim/skipped"]))
        if one is broken:
            jax.tree.map(np.testing.assert_array_equal, (state.params, state.opt_state, state.step), before)
    assert counts == [1.0, 2.0, 0.0, 1.0] and state.step == 1


def test_a_batch_without_a_signal_changes_nothing(make_learner, params, batch):
    learner = make_learner()
    reference = learner.place(params[2])
    state, _ = learner.update(learner.init(params[0]), batch, reference)
    before = jax.device_get(state)
    state, metrics = learner.update(state, pack([], [], shape=SHAPE), reference)
    jax.tree.map(np.testing.assert_array_equal, state, before)
    assert all(np.isfinite(x) for x in metrics.values())


def test_several_updates_of_a_step_compare_with_the_policy_before_the_first(make_learner, params, sampled):
    learner = make_learner(GRPOConfig())
    halves = [pack(sampled[0][i::2], sampled[1][i::2], shape=SHAPE) for i in range(2)]
    old = [learner.with_old_logprobs(learner.place(params[0]), half) for half in halves]
    state = learner.init(params[0])
    state, first = learner.update(state, old[0])
    state, second = learner.update(state, old[1])
    got, metrics = learner.step(learner.init(params[0]), halves)
    jax.tree.map(np.testing.assert_array_equal, got, state)
    assert float(first["policy/ratio_max"]) == pytest.approx(1.0) and float(second["policy/kl_old"]) > 0
    assert metrics["policy/ratio_max"] == float(second["policy/ratio_max"])
    assert metrics["learn/tokens"] == float(first["learn/tokens"] + second["learn/tokens"])


def test_demonstrations_are_learnt_by_heart(make_learner, params, sampled):
    learner = make_learner(None)
    state, batch = learner.init(params[0]), pack(sampled[0][:2], [1.0, 1.0], shape=SHAPE)
    losses = []
    for _ in range(40):
        state, metrics = learner.update(state, batch)
        losses.append(float(metrics["policy/loss"]))
    assert losses[-1] < 0.1 * losses[0]


def test_what_cannot_work_is_refused_before_anything_compiles(make_learner, params, batch):
    with pytest.raises(ValueError, match="learner.rows=4 must be divisible by mesh data x fsdp = 8"):
        make_learner(mesh=MeshConfig(data=4, fsdp=2))
    with pytest.raises(ValueError, match="Axis 'kv_heads' .* has size 2, which mesh axis 'tensor' of size 4"):
        make_learner(mesh=MeshConfig(tensor=4))
    with pytest.raises(ValueError, match="algo.kl_coef"):
        make_learner().update(make_learner().init(params[0]), batch)

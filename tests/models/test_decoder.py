"""The decoder against a forward pass written as NumPy loops, and against itself scanned, unrolled, packed and sharded."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from agentjax.models import decoder
from agentjax.models.attention import packed_causal_attention
from agentjax.models.config import ModelConfig
from agentjax.sharding.mesh import MeshConfig, make_mesh
from agentjax.sharding.rules import LEARNER_RULES, SAMPLER_RULES, check_divisible, specs

TINY = {"vocab_size": 24, "num_layers": 2, "d_model": 8, "num_heads": 4, "num_kv_heads": 2, "head_dim": 4, "d_ff": 12}
CONFIGS = [
    ModelConfig(**TINY),
    ModelConfig(**TINY, qk_norm=False, tie_embeddings=False, rope_theta=500.0),
    ModelConfig(**TINY | {"num_kv_heads": 4}, embedding_scale=3.0),
]


@functools.cache
def make_params(config):
    """Weights of random scales, norms included, so that one left out or misplaced would show. From NumPy: quick."""
    noise = np.random.default_rng(0)
    shapes = jax.eval_shape(functools.partial(decoder.init_params, config), jax.random.key(0))
    axes = jax.tree.leaves(decoder.param_axes(config), is_leaf=lambda x: isinstance(x, tuple))
    weights, tree = jax.tree.flatten(shapes)
    made = [
        noise.uniform(0.5, 2.0, w.shape) * (1 if _is_norm(names) else 0.3 * noise.normal(size=w.shape))
        for w, names in zip(weights, axes, strict=True)
    ]
    return jax.tree.unflatten(tree, [x.astype(w.dtype) for x, w in zip(made, weights, strict=True)])


def _is_norm(axes):
    return axes in (("embed",), ("layers", "embed"), ("layers", "head_dim"))


@functools.partial(jax.jit, static_argnames=("config", "shard", "remat"))
def packed_logits(params, tokens, segment_ids, positions, *, config, shard=None, remat=False):
    def attend(q, k, v, layer, state):
        return packed_causal_attention(q, k, v, segment_ids, positions), state

    hidden, _ = decoder.hidden_states(params, tokens, positions, config=config, attend=attend, shard=shard, remat=remat)
    return decoder.logits(params, hidden, config=config)


def forward(params, tokens, config, **options):
    """Logits of rows of one stream each."""
    tokens = jnp.asarray(tokens)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return packed_logits(params, tokens, jnp.ones_like(tokens), positions, config=config, **options)


def loops(params, tokens, config):
    """Logits of one stream, token by token and head by head."""
    p = jax.tree.map(np.asarray, params)
    x = p["embedding"][tokens] * config.embedding_scale
    for layer in range(config.num_layers):
        w = jax.tree.map(lambda a, layer=layer: a[layer], p["layers"])
        x = x + _attention(_norm(x, w["attention_norm"]["scale"], config), w["attention"], config)
        h = _norm(x, w["mlp_norm"]["scale"], config)
        gate = h @ w["mlp"]["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["mlp"]["up"])) @ w["mlp"]["down"]
    head = p["embedding"] if config.tie_embeddings else p["head"]
    return _norm(x, p["final_norm"]["scale"], config) @ head.T


def _norm(x, scale, config):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * scale


def _rotated(x, position, theta):
    half = len(x) // 2
    out = np.empty_like(x)
    for i in range(half):
        angle = position * theta ** (-i / half)
        out[i] = x[i] * np.cos(angle) - x[half + i] * np.sin(angle)
        out[half + i] = x[half + i] * np.cos(angle) + x[i] * np.sin(angle)
    return out


def _attention(x, w, config):
    out = np.zeros_like(x)
    for n in range(config.num_heads):
        kv = n // (config.num_heads // config.num_kv_heads)
        q, k, v = x @ w["query"][:, n], x @ w["key"][:, kv], x @ w["value"][:, kv]
        if config.qk_norm:
            q, k = _norm(q, w["query_norm"]["scale"], config), _norm(k, w["key_norm"]["scale"], config)
        q = np.stack([_rotated(row, t, config.rope_theta) for t, row in enumerate(q)])
        k = np.stack([_rotated(row, t, config.rope_theta) for t, row in enumerate(k)])
        for t in range(len(x)):
            scores = k[: t + 1] @ q[t] / np.sqrt(config.head_dim)
            weights = np.exp(scores - scores.max())
            out[t] += (weights / weights.sum()) @ v[: t + 1] @ w["out"][n]
    return out


@pytest.mark.parametrize("config", CONFIGS, ids=["tied", "untied", "scaled"])
def test_logits_equal_the_loops(config):
    params = make_params(config)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, (2, 9))
    want = np.stack([loops(params, row, config) for row in tokens])
    np.testing.assert_allclose(forward(params, tokens, config), want, rtol=1e-5, atol=3e-5)


def test_scanned_unrolled_and_recomputed_layers_agree():
    config, tokens = CONFIGS[0], np.random.default_rng(2).integers(0, 24, (2, 7))
    params = make_params(config)

    def loss_and_gradients(unstack, remat):
        def loss(params):
            scores = forward(decoder.unstack_layers(params) if unstack else params, tokens, config, remat=remat)
            return (scores**2).sum(), scores

        quick = {
            "xla_backend_optimization_level": 0,
            "xla_llvm_disable_expensive_passes": True,
        }  # compile time is all there is
        return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quick)(params)

    scanned = loss_and_gradients(False, False)
    for unstack, remat in [(False, True), (True, True)]:
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
        jax.tree.map(close, loss_and_gradients(unstack, remat), scanned)


def test_layers_are_numbered_in_order_whether_scanned_or_unrolled():
    config, tokens = CONFIGS[0], jnp.zeros((1, 1), jnp.int32)

    def attend(q, k, v, layer, state):
        return q, state * 10 + layer + 1

    @jax.jit
    def run(params):
        return decoder.hidden_states(params, tokens, tokens, config=config, attend=attend, state=jnp.int32(0))[1]

    params = make_params(config)
    assert int(run(params)) == int(run(decoder.unstack_layers(params))) == 12


def test_packed_segments_do_not_see_each_other():
    config, rng = CONFIGS[0], np.random.default_rng(3)
    params = make_params(config)
    first, second = rng.integers(0, 24, (2, 5))
    row = np.concatenate([first, second, [7, 7]])[None]
    segments = np.array([[1] * 5 + [2] * 5 + [0] * 2])
    positions = np.array([[*range(5), *range(5), 0, 0]])
    packed = packed_logits(params, row, segments, positions, config=config)[0]
    np.testing.assert_allclose(packed[:5], forward(params, first[None], config)[0], atol=1e-5)
    np.testing.assert_allclose(packed[5:10], forward(params, second[None], config)[0], atol=1e-5)
    assert np.isfinite(packed).all()


def test_padding_changes_nothing():
    config, rng = CONFIGS[0], np.random.default_rng(6)
    params, stream = make_params(config), rng.integers(0, 24, (1, 5))
    segments, positions = np.zeros((3, 10), int), np.zeros((3, 10), int)
    segments[0, :5], positions[0, :5] = 1, np.arange(5)

    def padded(fill):
        rows = np.full((3, 10), fill)
        rows[0, :5] = stream
        return packed_logits(params, rows, segments, positions, config=config)[0, :5]

    np.testing.assert_allclose(padded(3), forward(params, stream, config)[0], atol=1e-5)
    np.testing.assert_array_equal(padded(3), padded(17))


@pytest.mark.parametrize("config", CONFIGS[:2], ids=["tied", "untied"])
def test_tensor_shards_under_shard_map_equal_the_whole(config):
    params, tokens = make_params(config), np.random.default_rng(4).integers(0, 24, (2, 6))
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))

    def local(params):
        shard = decoder.TensorShard("tensor")
        scores = forward(params, tokens, config, shard=shard)
        return jax.lax.all_gather(scores, "tensor", axis=-1, tiled=True)

    layout = specs(decoder.param_axes(config), SAMPLER_RULES)
    sharded = jax.shard_map(local, mesh=mesh, in_specs=(layout,), out_specs=PartitionSpec(), check_vma=False)
    np.testing.assert_allclose(jax.jit(sharded)(params), forward(params, tokens, config), atol=1e-5)


def test_axes_name_every_axis_of_every_weight():
    for config in CONFIGS:
        params, axes = make_params(config), decoder.param_axes(config)
        is_axes = lambda x: isinstance(x, tuple)
        assert jax.tree.structure(params) == jax.tree.structure(axes, is_leaf=is_axes)
        sizes = {"layers": 2, "vocab": 24, "embed": 8, "heads": 4, "kv_heads": config.num_kv_heads, "mlp": 12}
        for weight, names in zip(jax.tree.leaves(params), jax.tree.leaves(axes, is_leaf=is_axes), strict=True):
            assert weight.shape == tuple(sizes.get(name, 4) for name in names)


@dataclasses.dataclass(frozen=True)
class Recorded(decoder.Whole):
    """Keeps what is added to the residual stream."""

    added: list[jax.Array] = dataclasses.field(default_factory=list)

    def embed(self, embedding, tokens):
        self.added.append(super().embed(embedding, tokens))
        return self.added[-1]

    def reduce(self, x):
        self.added.append(x)
        return x


NEW = ModelConfig(vocab_size=512, num_layers=4, d_model=64, head_dim=16, d_ff=96, num_kv_heads=2, tie_embeddings=False)


@pytest.fixture(scope="module")
def new_params():
    return decoder.init_params(NEW, jax.random.key(0))


def test_a_new_model_is_nearly_uniform_and_keeps_the_scale_of_its_stream(new_params):
    tokens = jnp.asarray(np.random.default_rng(5).integers(0, 512, (4, 32)))

    @jax.jit
    def run(params):
        positions, ones, stream = jnp.arange(32) + 0 * tokens, jnp.ones_like(tokens), Recorded()
        attend = lambda q, k, v, layer, state: (packed_causal_attention(q, k, v, ones, positions), state)
        params = decoder.unstack_layers(params)
        hidden, _ = decoder.hidden_states(params, tokens, positions, config=NEW, attend=attend, shard=stream)
        return decoder.logits(params, hidden, config=NEW), jnp.stack(stream.added)

    scores, added = run(new_params)
    logprobs = jax.nn.log_softmax(scores)
    entropy = -(jnp.exp(logprobs) * logprobs).sum(-1).mean()
    assert 0.8 * np.log(512) < entropy <= np.log(512)
    assert 0.8 < scores.std() < 1.2
    assert len(added) == 1 + 2 * NEW.num_layers
    assert (added[1:].std((1, 2, 3)) < (2 * NEW.num_layers) ** -0.5).all()  # so that all blocks add at most variance 1
    assert 0.3 < added.sum(0).std() < 1.0


def test_weights_have_the_scale_of_their_fan_in_and_no_two_are_the_same(new_params):
    layers, depth = new_params["layers"], 2 * NEW.num_layers
    weights = layers["attention"] | layers["mlp"]
    fan_in = {"query": 64, "key": 64, "value": 64, "out": 64 * depth, "gate": 64, "up": 64, "down": 96 * depth}
    correlation = lambda a, b: abs(np.corrcoef(np.ravel(a), np.ravel(b))[0, 1])
    for name, fan in fan_in.items():
        np.testing.assert_allclose(np.std(weights[name]), fan**-0.5, rtol=0.05, err_msg=name)
        assert correlation(weights[name][0], weights[name][1]) < 0.1, f"{name} of two layers"
    for a, b in [("key", "value"), ("gate", "up")]:
        assert correlation(weights[a], weights[b]) < 0.1, f"{a} and {b}"
    assert correlation(new_params["embedding"], new_params["head"]) < 0.1


def test_bfloat16_runs_and_scores_in_float32():
    config = ModelConfig(**TINY, dtype="bfloat16")
    params = make_params(config)
    scores = forward(params, np.arange(5)[None], config)
    wide = jax.tree.map(lambda x: x.astype(np.float32), params)
    np.testing.assert_allclose(scores, forward(wide, np.arange(5)[None], CONFIGS[0]), rtol=0.1, atol=0.1)
    assert scores.dtype == jnp.float32 and np.isfinite(scores).all()
    assert all(weight.dtype == jnp.bfloat16 for weight in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, r"model.num_heads \(4\) must be a multiple of model.num_kv_heads \(3\)"),
        ({"head_dim": 5}, "model.head_dim must be even"),
        ({"d_ff": 0}, "model.d_ff must be >= 1, got 0"),
        ({"dtype": "float16"}, "model.dtype must be one of float32, bfloat16, got 'float16'"),
        ({"embedding_scale": 0.0}, "model.embedding_scale must be > 0"),
        ({"rope_theta": 0.0}, "model.rope_theta must be > 0"),
        ({"norm_eps": 0.0}, "model.norm_eps must be > 0"),
    ],
)
def test_impossible_sizes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**TINY | change)


def test_an_axis_that_does_not_divide_is_named():
    config = ModelConfig(**TINY | {"d_ff": 13})
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    arrays = make_params(config)
    with pytest.raises(ValueError, match="Axis 'mlp' of .* has size 13"):
        check_divisible(decoder.param_axes(config), arrays, mesh, LEARNER_RULES)

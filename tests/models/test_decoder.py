"""The decoder against a forward pass written as NumPy loops, and against itself scanned, unrolled, packed and sharded."""

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


def make_params(config, seed=0):
    """Weights with norms that are not all 1, so that a norm left out would show."""
    params = decoder.init_params(config, jax.random.key(seed))
    noise = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x * jnp.asarray(noise.uniform(0.5, 2.0, x.shape), x.dtype), params)


def forward(params, tokens, config, segment_ids=None, positions=None, **options):
    tokens = jnp.asarray(tokens)
    segment_ids = jnp.ones_like(tokens) if segment_ids is None else jnp.asarray(segment_ids)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape) if positions is None else positions

    def attend(q, k, v, layer, state):
        return packed_causal_attention(q, k, v, segment_ids, positions), state

    hidden, _ = decoder.hidden_states(params, tokens, positions, config=config, attend=attend, **options)
    return decoder.logits(params, hidden, config=config)


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
    scanned = forward(params, tokens, config)
    np.testing.assert_allclose(forward(decoder.unstack_layers(params), tokens, config), scanned, atol=1e-5)

    def loss(params, **options):
        return (forward(params, tokens, config, **options) ** 2).sum()

    plain, again = jax.grad(loss)(params), jax.grad(lambda p: loss(p, remat=True))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), plain, again)
    unrolled = jax.grad(lambda p: loss(decoder.unstack_layers(p), remat=True))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), plain, unrolled)


def test_packed_segments_do_not_see_each_other():
    config, rng = CONFIGS[0], np.random.default_rng(3)
    params = make_params(config)
    first, second = rng.integers(0, 24, 5), rng.integers(0, 24, 4)
    row = np.concatenate([first, second, [7, 7]])[None]
    segments = np.array([[1] * 5 + [2] * 4 + [0] * 2])
    positions = jnp.array([[*range(5), *range(4), 0, 0]])
    packed = forward(params, row, config, segments, positions)[0]
    np.testing.assert_allclose(packed[:5], forward(params, first[None], config)[0], atol=1e-5)
    np.testing.assert_allclose(packed[5:9], forward(params, second[None], config)[0], atol=1e-5)
    assert np.isfinite(packed).all()


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
        params, axes = decoder.init_params(config, jax.random.key(0)), decoder.param_axes(config)
        is_axes = lambda x: isinstance(x, tuple)
        assert jax.tree.structure(params) == jax.tree.structure(axes, is_leaf=is_axes)
        sizes = {"layers": 2, "vocab": 24, "embed": 8, "heads": 4, "kv_heads": config.num_kv_heads, "mlp": 12}
        for weight, names in zip(jax.tree.leaves(params), jax.tree.leaves(axes, is_leaf=is_axes), strict=True):
            assert weight.shape == tuple(sizes.get(name, 4) for name in names)


def test_a_new_model_is_nearly_uniform_and_keeps_the_scale_of_its_stream():
    config = ModelConfig(vocab_size=512, num_layers=8)
    params = decoder.init_params(config, jax.random.key(0))
    tokens = np.random.default_rng(5).integers(0, 512, (4, 32))
    logprobs = jax.nn.log_softmax(forward(params, tokens, config))
    entropy = -(jnp.exp(logprobs) * logprobs).sum(-1).mean()
    assert 0.8 * np.log(512) < entropy <= np.log(512)


def test_bfloat16_runs_and_scores_in_float32():
    config = ModelConfig(**TINY, dtype="bfloat16")
    params = decoder.init_params(config, jax.random.key(0))
    scores = forward(params, np.zeros((1, 5), int), config)
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
    arrays = decoder.init_params(config, jax.random.key(0))
    with pytest.raises(ValueError, match="Axis 'mlp' of .* has size 13"):
        check_divisible(decoder.param_axes(config), arrays, mesh, LEARNER_RULES)

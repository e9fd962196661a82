"""Layers of the decoder: weights declared once, with shape, logical axes and initialiser, and what is done with them.

Head counts are read off the weights, never off the config, so that the same code runs on a shard of the heads. Each
layer's last product is a partial sum where heads or features are sharded; the caller reduces it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from agentjax.models.config import ModelConfig

Attend = Callable[..., tuple[Array, Any]]
"""`attend(q [B T N H], k [B T K H], v [B T K H], layer, state) -> (out [B T N H], state)`: how tokens see each other.

Queries and keys come normed and rotated, not scaled. `state` is whatever the caller threads through the layers, such as
the pages of a KV cache.
"""


def weight(rngs: nnx.Rngs, config: ModelConfig, *, std: float, **axes: int) -> nnx.Param:
    """A weight drawn from a normal distribution.

    Args:
        rngs: Source of keys.
        config: Gives the dtype.
        std: Standard deviation.
        **axes: Logical axis to size, in order.
    """
    values = std * jax.random.normal(rngs.params(), tuple(axes.values()), jnp.float32)
    return nnx.Param(values.astype(config.dtype), axes=tuple(axes))


class RMSNorm(nnx.Module):
    """y = scale * x / sqrt(mean(x^2) + eps), in f32. Source: arXiv:1910.07467."""

    def __init__(self, config: ModelConfig, **axis: int):
        self.scale = nnx.Param(jnp.ones(tuple(axis.values()), config.dtype), axes=tuple(axis))
        self.eps = config.norm_eps

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return normed.astype(x.dtype) * self.scale[...]


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions; how tokens see each other is the caller's."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        d, n, k, h = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim
        std = d**-0.5
        self.query = weight(rngs, config, std=std, embed=d, heads=n, head_dim=h)
        self.key = weight(rngs, config, std=std, embed=d, kv_heads=k, head_dim=h)
        self.value = weight(rngs, config, std=std, embed=d, kv_heads=k, head_dim=h)
        self.out = weight(rngs, config, std=_residual_std(config, n * h), heads=n, head_dim=h, embed=d)
        self.query_norm = RMSNorm(config, head_dim=h) if config.qk_norm else None
        self.key_norm = RMSNorm(config, head_dim=h) if config.qk_norm else None
        self.theta = config.rope_theta

    def __call__(self, x: Float[Array, "B T D"], positions: Int[Array, "B T"], attend: Attend, layer, state):
        """The heads' contribution to the residual stream, a partial sum over the local heads, and the state."""
        query, key, value = project(x, self.query[...]), project(x, self.key[...]), project(x, self.value[...])
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = rotate(query, positions, self.theta), rotate(key, positions, self.theta)
        seen, state = attend(query, key, value, layer, state)
        out = self.out[...]
        return project(seen.reshape(*x.shape[:-1], -1), out.reshape(-1, out.shape[-1])), state


class MLP(nnx.Module):
    """down(silu(gate(x)) * up(x)). Source: SwiGLU, arXiv:2002.05202."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        d, f = config.d_model, config.d_ff
        self.gate = weight(rngs, config, std=d**-0.5, embed=d, mlp=f)
        self.up = weight(rngs, config, std=d**-0.5, embed=d, mlp=f)
        self.down = weight(rngs, config, std=_residual_std(config, f), mlp=f, embed=d)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The features' contribution to the residual stream, a partial sum over the local features."""
        flat = x.reshape(-1, x.shape[-1])
        hidden = jax.nn.silu(project(flat, self.gate[...])) * project(flat, self.up[...])
        return project(hidden, self.down[...]).reshape(x.shape)


class Block(nnx.Module):
    """Attention, then the feed-forward layer, each normed before and added after."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(config, embed=config.d_model)
        self.attention = Attention(config, rngs)
        self.mlp_norm = RMSNorm(config, embed=config.d_model)
        self.mlp = MLP(config, rngs)

    def __call__(self, x: Float[Array, "B T D"], positions: Int[Array, "B T"], attend: Attend, reduce, layer, state):
        """The residual stream after the block, and the state."""
        seen, state = self.attention(self.attention_norm(x), positions, attend, layer, state)
        x = x + reduce(seen)
        return x + reduce(self.mlp(self.mlp_norm(x))), state


def project(x: Float[Array, "*B D"], matrix: Float[Array, "D ..."]) -> Float[Array, "..."]:
    """x @ matrix over all other axes at once, accumulated in f32.

    Both are flattened to two axes: contracting over batch and time in the gradient would otherwise transpose whole
    activations on CPU, which doubles the time of a training step.
    """
    flat = x.reshape(-1, x.shape[-1])
    product = jnp.dot(flat, matrix.reshape(matrix.shape[0], -1), preferred_element_type=jnp.float32)
    return product.astype(x.dtype).reshape(*x.shape[:-1], *matrix.shape[1:])


def rotate(x: Float[Array, "B T N H"], positions: Int[Array, "B T"], theta: float) -> Float[Array, "B T N H"]:
    """Rotary positions in the half-split order of Llama and Qwen. Source: RoFormer, arXiv:2104.09864."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def _residual_std(config: ModelConfig, fan_in: int) -> float:
    """Two products a block end in the residual stream: together they add variance 1 over the depth. Source: GPT-2."""
    return (fan_in * 2 * config.num_layers) ** -0.5

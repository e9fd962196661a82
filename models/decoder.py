"""The decoder: parameters and token ids in, hidden states and logits out, as pure functions of the parameters.

    params = init_params(config, key)                  # nested dict; layers stacked on a leading axis
    hidden, state = hidden_states(params, tokens, positions, config=config, attend=attend)
    scores = logits(params, hidden, config=config)

The tree of weights is that of the Flax NNX modules below; shapes, dtypes and logical axes derive from it. How tokens see
each other (`attend`) and where partial sums are reduced (`shard`) are the caller's: packed rows under `jit` for the
learner, KV pages under `shard_map` for the sampler.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from agentjax.models.config import ModelConfig
from agentjax.models.layers import Attend, Block, RMSNorm, weight

Params = dict[str, Any]


class Decoder(nnx.Module):
    """The weights of a decoder: embedding, stacked blocks, final norm, and a head unless it is the embedding."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        sizes = {"vocab": config.vocab_size, "embed": config.d_model}
        self.embedding = weight(rngs, config, std=config.d_model**-0.5, **sizes)

        @nnx.split_rngs(splits=config.num_layers)
        @nnx.vmap
        def stacked(rngs: nnx.Rngs) -> Block:
            return Block(config, rngs)

        self.layers = stacked(rngs)
        self.final_norm = RMSNorm(config, embed=config.d_model)
        self.head = None if config.tie_embeddings else weight(rngs, config, std=config.d_model**-0.5, **sizes)


@dataclasses.dataclass(frozen=True)
class TensorShard:
    """Inside `shard_map`: weights are local shards over a mesh axis, and partial sums are reduced over it."""

    axis: str

    def reduce(self, x: Array) -> Array:
        """The whole of partial sums."""
        return lax.psum(x, self.axis)

    def embed(self, embedding: Float[Array, "V D"], tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Look tokens up where their rows are."""
        local = tokens - lax.axis_index(self.axis) * embedding.shape[0]
        here = (local >= 0) & (local < embedding.shape[0])
        rows = embedding[jnp.clip(local, 0, embedding.shape[0] - 1)]
        return self.reduce(jnp.where(here[..., None], rows, 0))


@dataclasses.dataclass(frozen=True)
class Whole:
    """Weights are whole, or the compiler splits them: nothing to reduce."""

    def reduce(self, x: Array) -> Array:
        """The sum as it is."""
        return x

    def embed(self, embedding: Float[Array, "V D"], tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Look tokens up."""
        return embedding[tokens]


def init_params(config: ModelConfig, key: PRNGKeyArray) -> Params:
    """New weights: normal with variance 1 / fan-in, into the residual stream divided by twice the depth; norms at 1."""
    return nnx.to_pure_dict(nnx.state(Decoder(config, nnx.Rngs(params=key)), nnx.Param))


def param_axes(config: ModelConfig) -> Params:
    """Logical axes of every weight, as tuples in the tree of `init_params`."""
    abstract = nnx.state(nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(params=0))), nnx.Param)
    axes = nnx.to_pure_dict(jax.tree.map(lambda p: p.axes, abstract, is_leaf=lambda p: isinstance(p, nnx.Variable)))
    axes["layers"] = jax.tree.map(lambda names: ("layers", *names), axes["layers"], is_leaf=_is_axes)
    return axes


def unstack_layers(params: Params) -> Params:
    """The parameters with a list of layers in place of the stack, which `hidden_states` then unrolls."""
    stacked, graph = jax.tree.flatten(params["layers"])
    return params | {"layers": [jax.tree.unflatten(graph, each) for each in zip(*stacked, strict=True)]}


def hidden_states(
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    *,
    config: ModelConfig,
    attend: Attend,
    state: Any = None,
    shard: TensorShard | Whole | None = None,
    remat: bool = False,
) -> tuple[Float[Array, "B T D"], Any]:
    """Run the decoder up to its final norm.

    Args:
        params: Weights; stacked layers are scanned, a list of them is unrolled.
        tokens: Ids.
        positions: Position of each token in its stream.
        config: Sizes.
        attend: How tokens see each other; see `Attend`. Its `layer` is traced under a scan, an int when unrolled.
        state: Threaded through the layers in the scan's carry, where XLA updates it in place.
        shard: How to look up and reduce where something is split; None if nothing is.
        remat: Compute each block again in the backward pass.

    Returns:
        Hidden states, and the state after the last layer.
    """
    whole = shard or Whole()
    graph = _block_graph(config)

    def block(weights, x, layer, state):
        return nnx.merge(graph, weights)(x, positions, attend, whole.reduce, layer, state)

    unrolled = isinstance(params["layers"], list)
    if remat:
        block = jax.checkpoint(block, static_argnums=2 if unrolled else ())
    x = whole.embed(params["embedding"], tokens) * config.embedding_scale
    if unrolled:
        for layer, weights in enumerate(params["layers"]):
            x, state = block(weights, x, layer, state)
    else:
        layers = jnp.arange(config.num_layers, dtype=jnp.int32)
        step = lambda carry, layer: (block(layer[1], carry[0], layer[0], carry[1]), None)
        (x, state), _ = lax.scan(step, (x, state), (layers, params["layers"]))
    return nnx.merge(_norm_graph(config), params["final_norm"])(x), state


def logits(params: Params, hidden: Float[Array, "*B D"], *, config: ModelConfig) -> Float[Array, "*B V"]:
    """Scores of the next token, in f32; of the local vocabulary where the head is sharded."""
    head = params["embedding"] if config.tie_embeddings else params["head"]
    flat = hidden.reshape(-1, hidden.shape[-1])
    scores = jnp.dot(flat, head.T, preferred_element_type=jnp.float32)
    return scores.reshape(*hidden.shape[:-1], -1)


@functools.cache
def _block_graph(config: ModelConfig) -> nnx.GraphDef:
    return nnx.graphdef(nnx.eval_shape(lambda: Block(config, nnx.Rngs(params=0))))


@functools.cache
def _norm_graph(config: ModelConfig) -> nnx.GraphDef:
    return nnx.graphdef(nnx.eval_shape(lambda: RMSNorm(config, embed=config.d_model)))


def _is_axes(x: Any) -> bool:
    return isinstance(x, tuple)

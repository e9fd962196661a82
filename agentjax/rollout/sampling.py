"""Sampling: logits and keys in, one token a row and its log-probability out."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32, PRNGKeyArray, UInt32

_CDF_BLOCK = 128


def draw_keys(run_key: PRNGKeyArray, trajectories: UInt32[Array, " S"], positions: Int[Array, " S"]) -> PRNGKeyArray:
    """The key of each draw: `fold_in(fold_in(run_key, trajectory), position)`.

    Nothing else enters, so slot, company, arrival order, page size, block length and the number of devices cannot
    change what a trajectory samples.

    Args:
        run_key: Key of the run.
        trajectories: Seed of the trajectory in each row.
        positions: Position in the stream of the token to be drawn.
    """
    return jax.vmap(lambda t, p: jax.random.fold_in(jax.random.fold_in(run_key, t), p))(trajectories, positions)


def sample(
    logits: Float[Array, "S V"],
    keys: PRNGKeyArray,
    temperature: Float[Array, " S"],
    top_k: Int[Array, " S"],
    top_p: Float[Array, " S"],
) -> tuple[Int32[Array, " S"], Float[Array, " S"]]:
    """Draw one token a row from the tempered and filtered distribution.

    Args:
        logits: Unnormalised log-probabilities, f32.
        keys: One key a row.
        temperature: 0 takes the most likely token.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens whose mass reaches p; 1 keeps all.

    Returns:
        The tokens, and their log-probabilities under the distribution they were drawn from (at temperature 0: under
        the distribution at temperature 1).
    """
    greedy = temperature <= 0
    scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
    filtering = ((top_k > 0) | (top_p < 1)) & ~greedy
    scaled = lax.cond(filtering.any(), lambda x: _filter(x, filtering, top_k, top_p), lambda x: x, scaled)
    peak = scaled.max(-1, keepdims=True)
    weights = jnp.exp(scaled - peak)
    uniforms = jax.vmap(jax.random.uniform)(keys)
    tokens = jnp.where(greedy, jnp.argmax(scaled, -1), _inverse_cdf(weights, uniforms)).astype(jnp.int32)
    chosen = jnp.take_along_axis(scaled - peak, tokens[:, None], axis=1)[:, 0]
    return tokens, chosen - jnp.log(weights.sum(-1))


def _inverse_cdf(weights: Float[Array, "S V"], uniforms: Float[Array, " S"]) -> Int[Array, " S"]:
    """The first token at which the cumulative weight passes `uniform * total`.

    One uniform a row, and sums in two levels: first over blocks of the vocabulary, then inside the block hit.
    """
    rows, vocab = weights.shape
    blocks = jnp.pad(weights, ((0, 0), (0, -vocab % _CDF_BLOCK))).reshape(rows, -1, _CDF_BLOCK)
    ends = jnp.cumsum(blocks.sum(-1), axis=-1)
    block, target = _pick(ends, uniforms * ends[:, -1])
    inside = jnp.cumsum(jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0], axis=-1)
    index, _ = _pick(inside, jnp.minimum(target, inside[:, -1]))
    return block * _CDF_BLOCK + index


def _pick(ends: Float[Array, "S N"], target: Float[Array, " S"]) -> tuple[Int[Array, " S"], Float[Array, " S"]]:
    """Index of the first end beyond the target (never an entry of zero weight), and the target within it."""
    last = jnp.argmax(ends >= ends[:, -1:], axis=-1)
    index = jnp.minimum((ends <= target[:, None]).sum(-1), last)
    starts = jnp.take_along_axis(ends, jnp.maximum(index - 1, 0)[:, None], axis=1)[:, 0]
    return index, target - jnp.where(index > 0, starts, 0.0)


def _filter(
    logits: Float[Array, "S V"], rows: Bool[Array, " S"], top_k: Int[Array, " S"], top_p: Float[Array, " S"]
) -> Float[Array, "S V"]:
    """Send the logits outside top-k, then outside top-p of what is left, to minus infinity.

    Thresholds are found by bisection over the ordered bit patterns of f32, exactly and without a sort; tokens tied
    with the threshold stay.
    """
    vocab = logits.shape[-1]
    ordered = _ordered_bits(logits)
    k = jnp.where(rows & (top_k > 0), jnp.minimum(top_k, vocab), vocab)
    k_threshold = _largest(lambda t: (ordered >= t[:, None]).sum(-1) >= k, k.shape)
    kept = jnp.where(ordered >= k_threshold[:, None], jax.nn.softmax(logits, -1), 0.0)
    mass = jnp.where(rows, top_p, 1.0) * kept.sum(-1)
    p_threshold = _largest(lambda t: jnp.where(ordered >= t[:, None], kept, 0.0).sum(-1) >= mass, k.shape)
    p_threshold = jnp.where(rows & (top_p < 1), p_threshold, k_threshold)
    return jnp.where(ordered >= jnp.maximum(k_threshold, p_threshold)[:, None], logits, -jnp.inf)


def _ordered_bits(x: Float[Array, "S V"]) -> Int32[Array, "S V"]:
    """Integers in the order of the floats."""
    bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _largest(holds, shape) -> Int32[Array, " S"]:
    """The largest int32 for which a condition that holds up to some point still holds, by bisection."""
    low = jnp.full(shape, jnp.iinfo(jnp.int32).min, jnp.int32)
    high = jnp.full(shape, jnp.iinfo(jnp.int32).max, jnp.int32)

    def halve(_, bounds):
        low, high = bounds
        middle = (low >> 1) + (high >> 1) + ((low | high) & 1)
        ok = holds(middle)
        return jnp.where(ok, middle, low), jnp.where(ok, high, middle - 1)

    return lax.fori_loop(0, 33, halve, (low, high))[0]

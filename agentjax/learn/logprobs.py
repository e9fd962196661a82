"""Token logprobs: hidden states in, the log-probability of each token out, without logits of the whole row."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from agentjax.models import decoder
from agentjax.models.config import ModelConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenLogprobs:
    """What the policy says about each token of a row.

    Attributes:
        logprobs: log pi(token t | tokens before t); 0 at t = 0, which nothing predicts.
        entropy: Entropy in nats of the distribution token t is drawn from, a constant for the gradient; 0 at t = 0.
    """

    logprobs: Float32[Array, "B T"]
    entropy: Float32[Array, "B T"]


def token_logprobs(
    params: decoder.Params,
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    *,
    config: ModelConfig,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> TokenLogprobs:
    """Log-probability of each token, predicted from the hidden state before it.

    Args:
        params: Parameters of the decoder, for its head.
        hidden: Output of `decoder.hidden_states`.
        tokens: The tokens that went in.
        config: The decoder's.
        temperature: Divides the logits, as the sampler did.
        chunk: Tokens a row whose logits [B, chunk, V] exist at once, a divisor of T; they are computed again in the
            backward pass. None: the whole row, computed once.
    """

    def of_chunk(hidden, targets):
        return _of_targets(decoder.logits(params, hidden, config=config) / temperature, targets)

    targets = jnp.roll(tokens, -1, axis=1)
    length = tokens.shape[1]
    if chunk is None or chunk >= length:
        logprobs, entropy = of_chunk(hidden, targets)
    else:
        pieces = (_split(hidden, length // chunk), _split(targets, length // chunk))
        logprobs, entropy = map(_join, jax.lax.map(jax.checkpoint(lambda x: of_chunk(*x)), pieces))
    return TokenLogprobs(logprobs=_predicted(logprobs), entropy=_predicted(entropy))


def _of_targets(logits: Float[Array, "B C V"], targets: Int[Array, "B C"]) -> tuple[Array, Array]:
    """Log-probability of the targets, and entropy.

    The target's logit is picked by a masked sum, which stays local when the vocabulary is sharded and has no scatter in
    its gradient.
    """
    logits = logits.astype(jnp.float32)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    hit = jnp.arange(logits.shape[-1]) == targets[..., None]
    logprobs = jnp.sum(jnp.where(hit, logits, 0.0), axis=-1) - normaliser
    log_policy = jax.lax.stop_gradient(logits - normaliser[..., None])
    entropy = -jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1)
    return logprobs, entropy


def _split(x: Array, pieces: int) -> Array:
    """[B, T, ...] to [pieces, B, T / pieces, ...]."""
    return jnp.moveaxis(x.reshape(x.shape[0], pieces, -1, *x.shape[2:]), 1, 0)


def _join(x: Array) -> Array:
    """[pieces, B, C] to [B, pieces * C]."""
    return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)


def _predicted(x: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Move what position t says about token t + 1 to index t + 1."""
    return jnp.pad(x[:, :-1], ((0, 0), (1, 0)))

"""Gradients of an update: parameters and a packed batch in; gradients, loss and metrics of all its microbatches out."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from agentjax.learn.logprobs import TokenLogprobs
from agentjax.learn.losses import masked_sum
from agentjax.learn.objectives import Objective, Tokens, Totals
from agentjax.learn.packing import PackedBatch, Rows
from agentjax.models.decoder import Params

Metrics = dict[str, Float32[Array, ""]]
ForwardFn = Callable[[Params, Rows], TokenLogprobs]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Sums:
    """What microbatches add up to."""

    loss: Float32[Array, ""]
    total: Metrics
    largest: Metrics
    filled: Float32[Array, ""]


def accumulate_gradients(
    params: Params,
    reference: Params | None,
    version: Int[Array, ""],
    batch: PackedBatch,
    *,
    forward: ForwardFn,
    objective: Objective,
) -> tuple[Params, Metrics]:
    """Loss and gradients of one batch, a microbatch at a time.

    Only `batch.used` microbatches are computed, and every one is normalised by the totals of the batch, so that the
    result is the same however the rows are divided.

    Args:
        params: Where to take the gradient.
        reference: Frozen parameters, for an objective that needs them.
        version: Updates that `params` have seen.
        batch: What to learn from.
        forward: Gives the logprobs of packed rows.
        objective: What to differentiate.

    Returns:
        Gradients in float32, and metrics: those of the objective over the trained tokens of the batch (0 without any),
        `policy/loss`: the loss of the batch.
        `learn/tokens`: trained tokens.
        `learn/microbatches`: microbatches computed.
        `learn/fill`: share of their token slots that hold a trajectory.
    """
    totals = Totals(tokens=batch.tokens, trajectories=batch.trajectories)
    of_rows = functools.partial(_microbatch_loss, forward=forward, objective=objective)

    def add_microbatch(i, carry):
        gradients, sums = carry
        rows = microbatch(batch.rows, i)
        (_, more), gradient = jax.value_and_grad(of_rows, has_aux=True)(params, reference, version, rows, totals)
        return jax.tree.map(jnp.add, gradients, gradient), _add(sums, more)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
    like = jax.eval_shape(lambda: of_rows(params, reference, version, microbatch(batch.rows, 0), totals)[1])
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    gradients, sums = jax.lax.fori_loop(0, batch.used, add_microbatch, (zeros, nothing))
    return gradients, _metrics(sums, batch)


def microbatch(rows: Rows, i: Int[Array, ""] | int) -> Rows:
    """Rows [B, T] of microbatch i."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), rows)


def _microbatch_loss(
    params: Params,
    reference: Params | None,
    version: Int[Array, ""],
    rows: Rows,
    totals: Totals,
    *,
    forward: ForwardFn,
    objective: Objective,
) -> tuple[Float[Array, ""], _Sums]:
    policy = forward(params, rows)
    reference_logprobs = None
    if objective.needs_reference:
        assert reference is not None
        reference_logprobs = jax.lax.stop_gradient(forward(reference, rows).logprobs)
    old = jax.lax.stop_gradient(policy.logprobs) if rows.old_logprobs is None else rows.old_logprobs
    tokens = Tokens(
        policy_logprobs=policy.logprobs,
        entropy=policy.entropy,
        old_logprobs=old,
        sampler_logprobs=rows.sampler_logprobs,
        ref_logprobs=reference_logprobs,
        advantages=rows.advantages,
        age=(version - rows.policy_versions).astype(jnp.float32),
        mask=rows.loss_mask,
    )
    losses, metrics = objective.token_losses(tokens)
    loss = objective.normalise(losses, rows.loss_mask, totals)
    sums = _Sums(
        loss=loss,
        total={name: masked_sum(x, rows.loss_mask) for name, x in metrics.mean.items()},
        largest={name: _masked_max(x, rows.loss_mask) for name, x in metrics.max.items()},
        filled=jnp.sum(rows.segment_ids > 0, dtype=jnp.float32),
    )
    return loss, jax.lax.stop_gradient(sums)


def _masked_max(values: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Float[Array, ""]:
    return jnp.max(jnp.where(mask, values, 0.0))


def _add(a: _Sums, b: _Sums) -> _Sums:
    return _Sums(
        loss=a.loss + b.loss,
        total=jax.tree.map(jnp.add, a.total, b.total),
        largest=jax.tree.map(jnp.maximum, a.largest, b.largest),
        filled=a.filled + b.filled,
    )


def _metrics(sums: _Sums, batch: PackedBatch) -> Metrics:
    _, rows, length = batch.rows.tokens.shape
    means = {name: total / jnp.maximum(batch.tokens, 1.0) for name, total in sums.total.items()}
    return {
        **means,
        **sums.largest,
        "policy/loss": sums.loss,
        "learn/tokens": batch.tokens,
        "learn/microbatches": batch.used.astype(jnp.float32),
        "learn/fill": sums.filled / jnp.maximum(batch.used * rows * length, 1),
    }


def batch_logprobs(params: Params, batch: PackedBatch, *, forward: ForwardFn) -> Float32[Array, "M B T"]:
    """Logprobs of the used microbatches, 0 in the others."""

    def write(i, logprobs):
        return jax.lax.dynamic_update_index_in_dim(logprobs, forward(params, microbatch(batch.rows, i)).logprobs, i, 0)

    return jax.lax.fori_loop(0, batch.used, write, jnp.zeros(batch.rows.tokens.shape, jnp.float32))

"""Policy losses: log-probabilities and advantages in, one loss per token out; and the two ways to normalise their sum.

Arrays of one call share shape and index: entry t belongs to token t. Only the normalisers look at the mask of trained
tokens.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def clipped_surrogate(
    log_ratio: Float[Array, "*B T"],
    advantages: Float[Array, "*B T"],
    *,
    clip_low: float,
    clip_high: float,
) -> Float[Array, "*B T"]:
    """The PPO-clip loss with a range of its own on each side; a larger `clip_high` is DAPO's clip-higher.

        rho = exp(policy_logprob - old_logprob)
        loss = -min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)

    Source: PPO (arXiv:1707.06347), equation 7; DAPO (arXiv:2503.14476), equation 8.

    Args:
        log_ratio: policy_logprob - old_logprob of each token.
        advantages: Advantage of each token.
        clip_low: How far the ratio may fall below 1, in [0, 1].
        clip_high: How far the ratio may rise above 1.
    """
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def is_clipped(
    log_ratio: Float[Array, "*B T"],
    advantages: Float[Array, "*B T"],
    *,
    clip_low: float,
    clip_high: float,
) -> Bool[Array, "*B T"]:
    """Where `clipped_surrogate` has no gradient: the advantage has already pushed the ratio out of its range."""
    ratio = jnp.exp(log_ratio)
    return ((advantages > 0) & (ratio > 1.0 + clip_high)) | ((advantages < 0) & (ratio < 1.0 - clip_low))


def truncated_importance_weight(log_ratio: Float[Array, "*B T"], *, cap: float) -> Float[Array, "*B T"]:
    """Weight that corrects for a sampler whose probabilities differ from the trainer's.

        w = min(exp(old_logprob - sampler_logprob), cap), a constant for the gradient

    Source: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025), TIS.

    Args:
        log_ratio: old_logprob - sampler_logprob of each token.
        cap: Largest weight, C.
    """
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(log_ratio), cap))


def k1(log_ratio: Float[Array, "*B T"]) -> Float[Array, "*B T"]:
    """Estimate KL(policy || reference) by the plain log-ratio: unbiased, of either sign, with a high variance.

        k1 = log_ratio

    As a *loss* its gradient is that of log pi alone, zero on average: use it to measure, and `k2` or `k3` to hold the
    policy back.

    Source: Schulman, "Approximating KL Divergence" (2020).

    Args:
        log_ratio: policy_logprob - ref_logprob of tokens that the policy sampled.
    """
    return log_ratio


def k2(log_ratio: Float[Array, "*B T"]) -> Float[Array, "*B T"]:
    """Estimate KL(policy || reference) by half the squared log-ratio: biased, never negative.

        k2 = log_ratio^2 / 2

    On-policy its gradient is that of the KL itself. Source and argument as in `k1`.
    """
    return 0.5 * jnp.square(log_ratio)


def k3(log_ratio: Float[Array, "*B T"]) -> Float[Array, "*B T"]:
    """Estimate KL(policy || reference) with a control variate: unbiased and never negative. GRPO's choice.

        k3 = exp(-log_ratio) - 1 + log_ratio

    Source and argument as in `k1`; DeepSeekMath (arXiv:2402.03300), equation 4.
    """
    return jnp.expm1(-log_ratio) + log_ratio


KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def token_mean(
    losses: Float[Array, "*B T"], mask: Bool[Array, "*B T"], *, tokens: Float[Array, ""]
) -> Float[Array, ""]:
    """Mean over trained tokens: every token of the step weighs the same, so that long trajectories weigh more.

        L = sum_t mask_t loss_t / tokens

    Source: DAPO (arXiv:2503.14476), section 3.3.

    Args:
        losses: One loss per token of this microbatch; what `mask` leaves out is never read, NaN included.
        mask: The trained tokens of this microbatch.
        tokens: Trained tokens of the whole update, so that microbatches add up to one batch.
    """
    return masked_sum(losses, mask) / jnp.maximum(tokens, 1.0)


def masked_sum(values: Float[Array, "*B T"], mask: Bool[Array, "*B T"]) -> Float[Array, ""]:
    """Sum over the tokens that `mask` keeps."""
    return jnp.sum(jnp.where(mask, values, 0.0))


def constant_length(
    losses: Float[Array, "*B T"], mask: Bool[Array, "*B T"], *, trajectories: Float[Array, ""], length: int
) -> Float[Array, ""]:
    """Sum over trained tokens, divided by a constant length a trajectory.

    A token weighs the same however long its trajectory is.

        L = sum_t mask_t loss_t / (length * trajectories)

    Source: Dr. GRPO (arXiv:2503.20783), section 3.2.

    Args:
        losses: As in `token_mean`.
        mask: As in `token_mean`.
        trajectories: Trajectories of the whole update, those without a signal included.
        length: The constant, usually the budget of sampled tokens a trajectory.
    """
    return masked_sum(losses, mask) / (length * jnp.maximum(trajectories, 1.0))

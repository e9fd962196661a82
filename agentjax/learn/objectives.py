"""Objectives: what the learner minimises. Log-probabilities of one microbatch in, loss and token metrics out.

An objective is a pure function, and a factory below builds it from its config; the learner knows none by name.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from agentjax.learn import losses
from agentjax.learn.config import GRPOConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
    """What an objective may look at: arrays over the tokens of a microbatch, all of one shape and index.

    Attributes:
        policy_logprobs: Under the parameters being trained; the gradient flows through these alone.
        entropy: Of the policy's distribution that the token was drawn from, in nats.
        old_logprobs: Under the parameters at the start of the step, as the trainer computes them.
        sampler_logprobs: As the sampler recorded them.
        ref_logprobs: Under the frozen reference, or None where the objective does not ask for it.
        advantages: Credit of each token.
        age: Updates applied since the token was sampled.
        mask: The trained tokens; elsewhere every other array is meaningless.
    """

    policy_logprobs: Float[Array, "B T"]
    entropy: Float[Array, "B T"]
    old_logprobs: Float[Array, "B T"]
    sampler_logprobs: Float[Array, "B T"]
    ref_logprobs: Float[Array, "B T"] | None
    advantages: Float[Array, "B T"]
    age: Float[Array, "B T"]
    mask: Bool[Array, "B T"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenMetrics:
    """Named quantities per token.

    Attributes:
        mean: Reported as the mean over the trained tokens of an update.
        max: Never negative; reported as the maximum over them.
    """

    mean: dict[str, Float[Array, "B T"]]
    max: dict[str, Float[Array, "B T"]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Totals:
    """Sizes of the whole update, which its microbatches are normalised by.

    Attributes:
        tokens: Trained tokens.
        trajectories: Trajectories, those that were left out for want of a signal included.
    """

    tokens: Float[Array, ""]
    trajectories: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss over the trained tokens of an update.

    Attributes:
        token_losses: Gives the loss of each token, and metrics.
        normalise: Turns the token losses of a microbatch, its mask and the update's totals into its share of the loss.
        needs_reference: Whether `Tokens.ref_logprobs` must be computed.
    """

    token_losses: Callable[[Tokens], tuple[Float[Array, "B T"], TokenMetrics]]
    normalise: Callable[[Float[Array, "B T"], Bool[Array, "B T"], Totals], Float[Array, ""]]
    needs_reference: bool = False


def grpo_objective(config: GRPOConfig) -> Objective:
    """The policy-gradient objective of `config`: see `grpo_token_losses` and the normalisers in `losses`."""
    return Objective(
        token_losses=functools.partial(grpo_token_losses, config=config),
        normalise=functools.partial(NORMALISERS[config.normalisation], config),
        needs_reference=config.kl_coef > 0,
    )


def grpo_token_losses(tokens: Tokens, *, config: GRPOConfig) -> tuple[Float[Array, "B T"], TokenMetrics]:
    """Clipped surrogate, corrected for the sampler's mismatch, plus a pull towards the reference.

        loss = w * surrogate(policy - old, A) + kl_coef * kl(policy - ref),  w = min(exp(old - sampler), tis_cap)

    all differences between log-probabilities. Without `tis_cap` w is 1; without `kl_coef` there is no reference.

    Returns:
        The loss of each token, and metrics over the trained tokens:
        `policy/entropy`: mean entropy of the policy, in nats.
        `policy/ratio`, `policy/ratio_max`: rho = exp(policy - old).
        `policy/clip_fraction`: share of tokens whose gradient the clip removed.
        `policy/kl_old`: mean k3 of policy - old; what this update's predecessors within the step have moved.
        `policy/kl_sampler`: mean of sampler - old, the k1 estimate of KL(sampler || trainer).
        `policy/mismatch`, `policy/mismatch_max`: |sampler - old|, what sampler and trainer disagree about.
        `policy/age`, `policy/age_max`: updates applied since the token was sampled.
        `policy/tis_weight`, `policy/tis_fraction`: w, and the share of tokens where the cap cut it; with `tis_cap`.
        `policy/kl_ref`: mean of the chosen estimator of KL(policy || reference); with `kl_coef` only.
    """
    log_ratio = _difference(tokens.policy_logprobs, tokens.old_logprobs, tokens.mask)
    mismatch = _difference(tokens.old_logprobs, tokens.sampler_logprobs, tokens.mask)
    clip = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    loss = losses.clipped_surrogate(log_ratio, tokens.advantages, **clip)
    mean = {
        "policy/entropy": tokens.entropy,
        "policy/ratio": jnp.exp(log_ratio),
        "policy/clip_fraction": losses.is_clipped(log_ratio, tokens.advantages, **clip).astype(jnp.float32),
        "policy/kl_old": losses.k3(log_ratio),
        "policy/kl_sampler": -mismatch,
        "policy/mismatch": jnp.abs(mismatch),
        "policy/age": tokens.age,
    }
    if config.tis_cap:
        weight = losses.truncated_importance_weight(mismatch, cap=config.tis_cap)
        loss = loss * weight
        mean |= {"policy/tis_weight": weight, "policy/tis_fraction": (weight >= config.tis_cap).astype(jnp.float32)}
    if tokens.ref_logprobs is not None:
        distance = _difference(tokens.policy_logprobs, tokens.ref_logprobs, tokens.mask)
        kl = losses.KL_ESTIMATORS[config.kl_estimator](distance)
        loss = loss + config.kl_coef * kl
        mean["policy/kl_ref"] = kl
    largest = {f"{name}_max": mean[name] for name in ("policy/ratio", "policy/mismatch", "policy/age")}
    return loss, TokenMetrics(mean=mean, max=largest)


def _difference(a: Float[Array, "B T"], b: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Float[Array, "B T"]:
    """a - b, and 0 where it means nothing, so that no exponential of such an entry reaches the gradient."""
    return jnp.where(mask, a - b, 0.0)


def _token_mean(config: GRPOConfig, values, mask, totals: Totals) -> Float[Array, ""]:
    return losses.token_mean(values, mask, tokens=totals.tokens)


def _constant_length(config: GRPOConfig, values, mask, totals: Totals) -> Float[Array, ""]:
    return losses.constant_length(values, mask, trajectories=totals.trajectories, length=config.constant_length)


NORMALISERS = {"token_mean": _token_mean, "constant": _constant_length}


def sft_objective() -> Objective:
    """Mean negative log-likelihood of the trained tokens: maximum likelihood on demonstrations."""
    return Objective(
        token_losses=negative_log_likelihood,
        normalise=lambda values, mask, totals: losses.token_mean(values, mask, tokens=totals.tokens),
    )


def negative_log_likelihood(tokens: Tokens) -> tuple[Float[Array, "B T"], TokenMetrics]:
    """loss = -policy_logprob, with `policy/entropy` (mean over trained tokens, in nats) as the metric."""
    return -tokens.policy_logprobs, TokenMetrics(mean={"policy/entropy": tokens.entropy}, max={})

"""Optimisers: a config in, an optax transformation and its learning-rate schedule out."""

from typing import Any

import jax
import optax

from agentjax.learn.config import OptimizerConfig


def make_optimizer(config: OptimizerConfig, axes: Any) -> optax.GradientTransformation:
    """AdamW on gradients clipped by their global norm.

        g <- g * min(1, max_grad_norm / ||g||);  p <- p - lr(n) * (adam(g) + weight_decay * p)

    n counts the updates made before this one. Source: Loshchilov and Hutter (arXiv:1711.05101).

    Args:
        config: Rates, moments and limits.
        axes: The logical axes of each parameter, as `models.decoder.param_axes` gives them; decides what decays.
    """
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(
            learning_rate=make_schedule(config),
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=decayed(axes),
        ),
    )


def make_schedule(config: OptimizerConfig) -> optax.Schedule:
    """Learning rate before update n: a linear rise over `warmup_steps`, then the schedule until `decay_steps`.

    The first update of a warm-up of W has rate peak / W, so that it is not lost.
    """
    peak, end = config.learning_rate, config.learning_rate * config.end_fraction
    decay_steps = max((config.decay_steps or 0) - config.warmup_steps, 1)
    after = {
        "constant": optax.constant_schedule(peak),
        "linear": optax.linear_schedule(peak, end, decay_steps),
        "cosine": optax.cosine_decay_schedule(peak, decay_steps, alpha=config.end_fraction),
    }[config.schedule]
    if not config.warmup_steps:
        return after
    warmup = optax.linear_schedule(peak / config.warmup_steps, peak, max(config.warmup_steps - 1, 1))
    return optax.join_schedules([warmup, after], [config.warmup_steps])


def decayed(axes: Any) -> Any:
    """Which parameters decay: matrices do; norms (vectors, one a layer when stacked) and the embedding table do not."""
    return jax.tree.map(_decays, axes, is_leaf=lambda x: isinstance(x, tuple))


def _decays(names: tuple[str | None, ...]) -> bool:
    own = [name for name in names if name != "layers"]
    return len(own) >= 2 and own[0] != "vocab"

"""Optimisers: a config in, an optax transformation and its learning-rate schedule out."""

from typing import Any

import jax
import optax
from optax import contrib

from agentjax.learn.config import OptimizerConfig


def make_optimizer(config: OptimizerConfig, axes: Any) -> optax.GradientTransformation:
    """The optimiser of a config, on gradients clipped by their global norm.

        g <- g * min(1, max_grad_norm / ||g||)

    Args:
        config: Which, its rates, moments and limits.
        axes: The logical axes of each parameter, as `models.decoder.param_axes` gives them; they decide what decays,
            and what Muon moves.
    """
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), _RULES[config.name](config, axes))


def adamw(config: OptimizerConfig, axes: Any) -> optax.GradientTransformation:
    """p <- p - lr(n) * (adam(g) + weight_decay * p), n counting the updates made before this one.

    Source: Loshchilov and Hutter (arXiv:1711.05101).
    """
    return optax.adamw(
        learning_rate=make_schedule(config),
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=decayed(axes),
    )


def muon(config: OptimizerConfig, axes: Any) -> optax.GradientTransformation:
    """p <- p - lr(n) * muon_rate * (u + weight_decay * p) for the matrices inside blocks, AdamW for all else.

    u is the orthogonalised momentum of a matrix, scaled to a root mean square of 0.2, as AdamW's updates have. Momentum
    is Nesterov's, for all parameters.

    Source: Jordan et al. (kellerjordan.github.io/posts/muon); the scale: Moonlight (arXiv:2502.16982).
    """
    schedule = make_schedule(config)
    return contrib.muon(
        learning_rate=lambda count: config.muon_rate * schedule(count),
        adam_learning_rate=schedule,
        adam_b1=config.b1,
        adam_b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        weight_decay_mask=decayed(axes),
        muon_weight_dimension_numbers=jax.tree.map(_muon_axes, axes, is_leaf=_is_axes),
        consistent_rms=0.2,
    )


_RULES = {"adamw": adamw, "muon": muon}


def _muon_axes(names: tuple[str, ...]) -> contrib.MuonDimensionNumbers | None:
    """Which axes of a weight are the rows and columns of its matrix; None for a weight that AdamW moves.

    A projection into heads maps "embed" to all other axes, one out of them all others to "embed".
    """
    if not _decays(names):
        return None
    own = range(names.count("layers"), len(names))
    split = own[-1] if names[-1] == "embed" else own[0] + 1
    return contrib.MuonDimensionNumbers(
        reduction_axis=tuple(axis for axis in own if axis < split),
        output_axis=tuple(axis for axis in own if axis >= split),
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
    """Which parameters decay: matrices inside blocks do; norms, the embedding table and the head do not."""
    return jax.tree.map(_decays, axes, is_leaf=_is_axes)


def _decays(names: tuple[str | None, ...]) -> bool:
    own = [name for name in names if name != "layers"]
    return len(own) >= 2 and own[0] != "vocab"


def _is_axes(x: Any) -> bool:
    return isinstance(x, tuple)

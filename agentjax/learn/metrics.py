"""Metrics of several updates in, metrics of the step they make up out."""

from collections.abc import Mapping, Sequence

SUMMED = ("learn/tokens", "learn/microbatches")
LAST = ("optim/skipped", "optim/lr")


def merge_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Summarise the updates of a step.

    Names that end in `_max` take the largest, `SUMMED` the sum, `LAST` the last, others the mean weighted by
    `learn/tokens`.

    Args:
        updates: Metrics of each update, in order, all with the same names.
    """
    return {name: _merge(name, updates) for name in (updates[0] if updates else ())}


def _merge(name: str, updates: Sequence[Mapping[str, float]]) -> float:
    values = [float(update[name]) for update in updates]
    if name.endswith("_max"):
        return max(values)
    if name in SUMMED:
        return sum(values)
    if name in LAST:
        return values[-1]
    weights = [float(update["learn/tokens"]) for update in updates]
    return sum(w * x for w, x in zip(weights, values, strict=True)) / max(sum(weights), 1.0)

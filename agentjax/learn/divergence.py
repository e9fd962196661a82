"""Divergence: the metrics of an update in, an error out when learning has gone wrong for good."""

from collections.abc import Mapping


class Diverged(RuntimeError):
    """Learning has gone wrong; the last good checkpoint is intact."""


def was_skipped(metrics: Mapping[str, float]) -> str | None:
    """What to say of an update that was skipped for a non-finite loss, gradient or result; None if it was not."""
    skipped = int(metrics["optim/skipped"])
    return (
        f"The update was skipped: its loss, gradient or result is not finite ({skipped} in a row)." if skipped else None
    )


def stop_if_diverged(metrics: Mapping[str, float], *, max_skipped: int) -> None:
    """Stop after several non-finite updates in a row.

    Raises:
        Diverged: Says how many updates were skipped and what to try.
    """
    skipped = int(metrics["optim/skipped"])
    if skipped >= max_skipped:
        raise Diverged(
            f"{skipped} updates in a row had a non-finite loss or gradient and were skipped "
            f"(learner.max_skipped={max_skipped}). The parameters are those before them, "
            f"and the last checkpoint is intact: lower the learning rate, or look at the step before in metrics.jsonl."
        )


def stop_if_mismatched(metrics: Mapping[str, float], *, budget: float) -> None:
    """Stop when sampler and trainer disagree by more than the budget: then training is not on-policy.

    Raises:
        Diverged: Says by how much.
    """
    mismatch = metrics.get("policy/mismatch", 0.0)
    if mismatch > budget:
        raise Diverged(
            f"Sampler and trainer disagree by {mismatch:.2e} nats a token on average, more than "
            f"rollout.mismatch_budget={budget:.2e}. Something is wrong with one of them; raise "
            f"the budget only if tokens are meant to be sampled from older weights or at lower precision."
        )

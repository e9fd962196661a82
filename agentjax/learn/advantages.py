"""Advantage estimators: rewards in, advantages out.

Each estimator gives one number per trajectory, the credit of all its tokens. They run on the host in NumPy, because the
number of groups in a step varies and must not compile anything, and because a group without a signal is dropped before
packing.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Float32

AdvantageFn = Callable[[Float[np.ndarray, "P G"], Bool[np.ndarray, "P G"]], Float32[np.ndarray, "P G"]]


def grpo(
    rewards: Float[np.ndarray, "P G"], valid: Bool[np.ndarray, "P G"], *, eps: float = 1e-6
) -> Float32[np.ndarray, "P G"]:
    """Centre and scale each reward within its group of samples.

        A[p, g] = (r[p, g] - mean_g r[p, :]) / (std_g r[p, :] + eps)

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.2.

    Args:
        rewards: One return per sample; P prompts, G samples of each. Values where `valid` is False are never read.
        valid: False where the infrastructure failed: such a sample counts in no mean and gets 0.
        eps: Added to the standard deviation (of the population), in units of reward.

    Returns:
        Advantages, zero-mean over the valid samples. A group of equal rewards gives exact zeros.

    Raises:
        ValueError: If G < 2, where a group has no baseline, or the shapes differ.
    """
    centred, usable = _centred(rewards, valid)
    count = np.maximum(usable.sum(axis=1, keepdims=True), 1)
    std = np.sqrt((centred**2).sum(axis=1, keepdims=True) / count)
    return (centred / (std + eps)).astype(np.float32)


def _centred(
    rewards: Float[np.ndarray, "P G"], valid: Bool[np.ndarray, "P G"]
) -> tuple[Float[np.ndarray, "P G"], Bool[np.ndarray, "P G"]]:
    """Rewards minus their group's mean, and which samples belong to a group with two different rewards."""
    if rewards.shape != valid.shape or rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(
            "Advantages need rewards and valid of one shape [P, G] with G >= 2 samples a prompt, "
            f"got rewards of shape {rewards.shape} and valid of shape {valid.shape}."
        )
    known = np.where(valid, rewards, 0.0).astype(np.float64)
    high = np.where(valid, known, -np.inf).max(axis=1, keepdims=True)
    low = np.where(valid, known, np.inf).min(axis=1, keepdims=True)
    # Equality is tested, not computed: the mean of equal floats may differ from them in the last bit, which a division
    # by eps would blow up.
    usable = valid & (high > low)
    mean = known.sum(axis=1, keepdims=True) / np.maximum(valid.sum(axis=1, keepdims=True), 1)
    return np.where(usable, known - mean, 0.0), usable


def dr_grpo(rewards: Float[np.ndarray, "P G"], valid: Bool[np.ndarray, "P G"]) -> Float32[np.ndarray, "P G"]:
    """Centre each reward within its group, without scaling, so that easy and hard prompts weigh the same.

        A[p, g] = r[p, g] - mean_g r[p, :]

    Source: Dr. GRPO (arXiv:2503.20783), section 3.2. Arguments, result and errors as in `grpo`.
    """
    return _centred(rewards, valid)[0].astype(np.float32)


def rloo(rewards: Float[np.ndarray, "P G"], valid: Bool[np.ndarray, "P G"]) -> Float32[np.ndarray, "P G"]:
    """Compare each reward with the mean of the *other* samples of its group.

        A[p, g] = r[p, g] - mean_{h != g} r[p, h] = n / (n - 1) * (r[p, g] - mean_h r[p, h]),  n valid samples

    Source: Ahmadian et al. (arXiv:2402.14740), section 2.2. Arguments, result and errors as in `grpo`.
    """
    centred, usable = _centred(rewards, valid)
    count = usable.sum(axis=1, keepdims=True)
    return (centred * count / np.maximum(count - 1, 1)).astype(np.float32)


ADVANTAGES: dict[str, AdvantageFn] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}

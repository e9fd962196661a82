"""Small made-up trajectories for the learner's tests."""

import numpy as np
import pytest

from agentjax.models.config import ModelConfig
from agentjax.trajectory import Segment, Source, StopReason, Trajectory


def _trajectory(length: int, *, seed: int = 0, prompt: int = 1, vocabulary: int = 13) -> Trajectory:
    """A prompt, then sampled and observed segments in turn, of random ids and logprobs: `length` tokens in all."""
    rng = np.random.default_rng((seed, length))
    cuts = np.array([prompt, *np.sort(rng.integers(prompt, length + 1, 3)), length]) if length > prompt else [length]
    sources = (Source.PROMPT, Source.POLICY, Source.ENVIRONMENT, Source.POLICY, Source.TEMPLATE)
    segments = [_segment(rng, s, n, vocabulary) for s, n in zip(sources, np.diff(cuts, prepend=0), strict=False)]
    return Trajectory(
        task_id="task",
        group_id="group",
        sample_index=seed,
        seed=seed,
        segments=tuple(segments),
        turns=(),
        reward=1.0,
        stop=StopReason.DONE,
    )


def _segment(rng, source: Source, length: int, vocabulary: int) -> Segment:
    ids = rng.integers(0, vocabulary, length).astype(np.int32)
    if source is not Source.POLICY:
        return Segment(source=source, ids=ids)
    logprobs = rng.uniform(-5, -1, length).astype(np.float32)
    return Segment(source=source, ids=ids, logprobs=logprobs, policy_versions=np.zeros(length, np.int32))


@pytest.fixture(scope="session")
def trajectory():
    return _trajectory


@pytest.fixture(scope="session")
def tiny_model():
    return ModelConfig(
        vocab_size=20, num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=32, tie_embeddings=False
    )

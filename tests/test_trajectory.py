"""A trajectory's per-token arrays share one index, and loss falls on sampled tokens alone."""

import numpy as np
import pytest

from agentjax.trajectory import Segment, Source, StopReason, Trajectory

ROW = Trajectory(
    task_id="t",
    group_id="g",
    sample_index=0,
    seed=0,
    segments=(
        Segment(Source.PROMPT, np.array([1, 2], np.int32)),
        Segment(Source.POLICY, np.array([3], np.int32), np.array([-0.5], np.float32), np.array([4], np.int32)),
        Segment(Source.TEMPLATE, np.array([5], np.int32)),
    ),
    turns=(),
    reward=0.0,
    stop=StopReason.DONE,
)


def test_arrays_share_one_index():
    assert ROW.tokens.tolist() == [1, 2, 3, 5]
    assert ROW.loss_mask.tolist() == [False, False, True, False]
    assert ROW.sampler_logprobs.tolist() == [0, 0, -0.5, 0]
    assert ROW.policy_versions.tolist() == [-1, -1, 4, -1]
    assert [a.dtype.name for a in (ROW.tokens, ROW.sampler_logprobs, ROW.policy_versions)] == [
        "int32",
        "float32",
        "int32",
    ]


def test_info_counts_tokens_and_turns():
    assert ROW.info["tokens"] == 4
    assert (ROW.info["turns"], ROW.info["stop"]) == (0, "done")


@pytest.mark.parametrize("stop", StopReason)
def test_faults_are_the_infrastructures(stop):
    assert stop.is_fault == (stop in {"env_crash", "timeout", "sandbox_lost"})

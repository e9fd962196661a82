"""Impossible settings are refused by name."""

import pytest

from agentjax.learn.config import GRPOConfig, LearnerConfig, OptimizerConfig


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: GRPOConfig(group_size=1), "algo.group_size"),
        (lambda: GRPOConfig(advantage="grop"), "algo.advantage"),
        (lambda: GRPOConfig(kl_estimator="k4"), "algo.kl_estimator"),
        (lambda: GRPOConfig(normalisation="tokens"), "algo.normalisation"),
        (lambda: GRPOConfig(clip_low=1.5), "algo.clip_low"),
        (lambda: GRPOConfig(tis_cap=0.5), "algo.tis_cap"),
        (lambda: OptimizerConfig(learning_rate=0.0), "optimizer.learning_rate"),
        (lambda: OptimizerConfig(schedule="cosin"), "optimizer.schedule"),
        (lambda: OptimizerConfig(schedule="cosine"), "optimizer.decay_steps"),
        (lambda: LearnerConfig(row_length=128, logprob_chunk=48), "learner.logprob_chunk"),
        (lambda: LearnerConfig(row_length=128).shape(trajectories=4, max_tokens=129), "learner.row_length"),
    ],
)
def test_an_impossible_value_is_named(make, field):
    with pytest.raises(ValueError, match=field):
        make()


@pytest.mark.parametrize("off", [None, 0, 0.0])
def test_no_importance_correction_can_be_asked_for(off):
    assert not GRPOConfig(tis_cap=off).tis_cap

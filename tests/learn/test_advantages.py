"""Advantages against loops written from the formulas, and the laws of a group baseline."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentjax.learn.advantages import ADVANTAGES, dr_grpo, grpo, rloo
from agentjax.learn.registry import lookup

rewards_of = hnp.arrays(np.float64, (3, 4), elements=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
valid_of = hnp.arrays(np.bool_, (3, 4))


def _loop(rewards, valid, of_group):
    want = np.zeros(rewards.shape)
    for p, g in np.ndindex(rewards.shape):
        group = rewards[p][valid[p]]
        if valid[p, g] and len(set(group)) > 1:
            want[p, g] = of_group(rewards[p, g], group)
    return want


@given(rewards_of, valid_of)
def test_grpo_is_the_formula_over_the_valid_samples(rewards, valid):
    want = _loop(rewards, valid, lambda r, group: (r - np.mean(group)) / (np.std(group) + 1e-6))
    np.testing.assert_allclose(grpo(rewards, valid), want, rtol=1e-5, atol=1e-6)


@given(rewards_of, valid_of)
def test_dr_grpo_does_not_scale(rewards, valid):
    want = _loop(rewards, valid, lambda r, group: r - np.mean(group))
    np.testing.assert_allclose(dr_grpo(rewards, valid), want, rtol=1e-5, atol=1e-6)


@given(rewards_of, valid_of)
def test_rloo_leaves_the_sample_itself_out(rewards, valid):
    want = _loop(rewards, valid, lambda r, group: r - (np.sum(group) - r) / (len(group) - 1))
    np.testing.assert_allclose(rloo(rewards, valid), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ADVANTAGES)
@given(reward=st.floats(-1e3, 1e3), valid=valid_of)
def test_equal_rewards_teach_exactly_nothing(name, reward, valid):
    assert not ADVANTAGES[name](np.full((3, 4), reward), valid).any()


@pytest.mark.parametrize("name", ADVANTAGES)
@given(rewards=rewards_of, valid=valid_of)
def test_what_a_faulted_sample_holds_is_never_read(name, rewards, valid):
    estimate = ADVANTAGES[name]
    broken = np.where(valid, rewards, np.nan)
    np.testing.assert_array_equal(estimate(broken, valid), estimate(rewards, valid))
    assert not estimate(broken, valid)[~valid].any()


def test_a_group_of_one_has_no_baseline():
    with pytest.raises(ValueError, match="G >= 2"):
        grpo(np.zeros((3, 1)), np.ones((3, 1), bool))


def test_an_unknown_name_is_told_its_neighbour():
    with pytest.raises(ValueError, match="algo.advantage='gpro' .* Did you mean 'grpo'"):
        lookup(ADVANTAGES, "gpro", field="algo.advantage")

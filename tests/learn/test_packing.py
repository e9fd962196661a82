"""Packing: every trajectory whole, once, with its own positions; and clear refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentjax.learn.config import LearnerConfig
from agentjax.learn.packing import PackShape, first_fit_decreasing, pack

SHAPE = PackShape(microbatches=4, rows=2, row_length=16)
lengths_of = st.lists(st.integers(2, 16), max_size=6)


def _unpack(batch):
    """The packed trajectories as a set of what each row segment holds."""
    rows = batch.rows
    found = []
    for m, b in np.ndindex(rows.tokens.shape[:2]):
        for segment in range(1, rows.segment_ids[m, b].max() + 1):
            place = (m, b, rows.segment_ids[m, b] == segment)
            np.testing.assert_array_equal(rows.positions[place], np.arange(place[2].sum()))
            fields = (rows.tokens, rows.loss_mask, rows.sampler_logprobs, rows.advantages, rows.policy_versions)
            found.append(tuple(tuple(x[place].tolist()) for x in fields))
    return sorted(found)


@given(lengths=lengths_of, seed=st.integers(0, 9))
def test_every_trajectory_is_there_whole_and_once(trajectory, lengths, seed):
    trajectories = [trajectory(length, seed=seed + i) for i, length in enumerate(lengths)]
    advantages = [float(i + 1) for i in range(len(lengths))]
    batch = pack(trajectories, advantages, shape=SHAPE)
    want = []
    for t, a in zip(trajectories, advantages, strict=True):
        fields = (t.tokens, t.loss_mask, t.sampler_logprobs, np.where(t.loss_mask, a, 0.0), t.policy_versions)
        want.append(tuple(tuple(x.tolist()) for x in fields))
    assert _unpack(batch) == sorted(want)
    assert batch.tokens == sum(t.loss_mask.sum() for t in trajectories)


@given(lengths=lengths_of)
def test_used_microbatches_come_first_and_the_rest_is_padding(trajectory, lengths):
    batch = pack([trajectory(n) for n in lengths], [1.0] * len(lengths), shape=SHAPE)
    filled = (np.asarray(batch.rows.segment_ids) > 0).any(axis=(1, 2))
    assert filled.tolist() == [i < batch.used for i in range(SHAPE.microbatches)]


@given(st.integers(0, 40), st.integers(1, 16), st.data())
def test_the_derived_shape_holds_any_step(count, most, data):
    shape = LearnerConfig(row_length=16, rows=2).shape(trajectories=max(count, 1), max_tokens=most)
    lengths = data.draw(st.lists(st.integers(1, most), min_size=count, max_size=count))
    assert len(first_fit_decreasing(lengths, capacity=16)) <= shape.microbatches * shape.rows


def test_the_longest_go_first_and_ties_keep_their_order():
    assert first_fit_decreasing([3, 5, 3, 8, 2], capacity=8) == [[3], [1, 0], [2, 4]]


def test_a_trajectory_longer_than_a_row_is_refused_not_cut(trajectory):
    with pytest.raises(ValueError, match=r"17 tokens and learner.row_length is 16"):
        pack([trajectory(17)], [1.0], shape=SHAPE)


def test_more_rows_than_there_are_is_refused(trajectory):
    with pytest.raises(ValueError, match=r"need 9 rows of 16.*learner.microbatches"):
        pack([trajectory(16)] * 9, [1.0] * 9, shape=SHAPE)


def test_a_trajectory_without_a_prompt_is_refused(trajectory):
    with pytest.raises(ValueError, match="begins with a sampled token"):
        pack([trajectory(5, prompt=0)], [1.0], shape=SHAPE)

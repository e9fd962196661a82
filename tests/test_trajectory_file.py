"""Trajectory files give back what went in, bit for bit; the integrity check finds every kind of corruption."""

import dataclasses
import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agentjax.trajectory import Segment, Source, StopReason, ToolUse, Trajectory, Turn
from agentjax.trajectory_file import (
    IntegrityError,
    check,
    read_header,
    read_trajectories,
    trajectory_from_json,
    trajectory_to_json,
    truncate,
    write_trajectories,
)

numbers = st.floats(allow_nan=False)
texts = st.text(st.characters(codec=None), max_size=6)  # lone surrogates too
tools = st.builds(ToolUse, texts, texts, st.booleans(), texts, numbers)
turns = st.builds(
    Turn,
    text=texts,
    reasoning=st.none() | texts,
    tools=st.lists(tools, max_size=2).map(tuple),
    parse_error=st.none() | texts,
    observation=texts,
    finish=st.sampled_from(["stop", "length", "tool_calls", "abort"]),
    reward=st.none() | numbers,
    model_s=numbers,
    tool_s=numbers,
)


def int32s(length):
    return hnp.arrays(np.int32, length, elements=st.integers(0, 2**31 - 1))


def logprobs(length):
    return hnp.arrays(np.float32, length, elements=st.floats(-np.finfo(np.float32).max, -0.0, width=32))


def sampled(length):
    return st.builds(Segment, st.just(Source.POLICY), int32s(length), logprobs(length), int32s(length))


def inserted(length):
    return st.builds(Segment, st.sampled_from([Source.ENVIRONMENT, Source.TEMPLATE]), int32s(length))


lengths = st.integers(1, 4)
rounds = st.lists(st.tuples(lengths.flatmap(sampled), lengths.flatmap(inserted)), min_size=1, max_size=3)
streams = st.builds(
    lambda prompt, later: (Segment(Source.PROMPT, prompt), *(segment for pair in later for segment in pair)),
    lengths.flatmap(int32s),
    rounds,
)
trajectories = st.builds(
    lambda stop, reward, **rest: Trajectory(stop=stop, reward=None if stop.is_fault else reward, **rest),
    stop=st.sampled_from(StopReason),
    reward=st.floats(-1e9, 1e9),
    task_id=texts,
    group_id=texts,
    sample_index=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
    segments=streams,
    turns=st.lists(turns, max_size=2).map(tuple),
    branch=st.integers(0, 2),
    reward_parts=st.dictionaries(texts, numbers, max_size=2),
    error=st.none() | texts,
    metrics=st.dictionaries(texts, numbers, max_size=2),
    fingerprint=texts,
)


def bits(trajectory):
    """All of a trajectory in a form that `==` compares exactly, signs of zero and dtypes included."""
    fields = dataclasses.asdict(trajectory)
    for segment in fields["segments"]:
        for name, value in segment.items():
            if isinstance(value, np.ndarray):
                segment[name] = (value.dtype, value.shape, value.tobytes())
    return fields


@given(st.lists(trajectories, max_size=3), st.sampled_from(["t.jsonl", "t.jsonl.gz"]))
def test_reading_gives_back_what_was_written(tmp_path_factory, rows, name):
    path = tmp_path_factory.mktemp("rows") / name
    write_trajectories(path, rows, {"step": 7})
    first = path.read_bytes()
    back = read_trajectories(path)
    assert [bits(row) for row in back] == [bits(row) for row in rows]
    assert read_header(path) == {"format": "agentjax.trajectories", "version": 1, "step": 7}
    write_trajectories(path, back, {"step": 7})
    assert path.read_bytes() == first


@given(trajectories)
def test_a_sound_trajectory_passes_and_is_unchanged_by_json(row):
    check(row)
    check(row, row_length=len(row.tokens))
    assert bits(trajectory_from_json(json.loads(json.dumps(trajectory_to_json(row))))) == bits(row)


def test_float32_values_that_text_would_round_or_refuse_survive(tmp_path):
    odd = np.array([0.1, -0.0, np.nan, -np.inf, 1e-45], np.float32)
    row = sound(segments=(Segment(Source.POLICY, np.arange(5, dtype=np.int32), odd, np.zeros(5, np.int32)),))
    write_trajectories(tmp_path / "t", [row])
    assert bits(read_trajectories(tmp_path / "t")[0]) == bits(row)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trajectories(path, [sound()])
    before = path.read_bytes()
    with pytest.raises(TypeError, match="holds JSON values, got <object"):
        write_trajectories(path, [sound(), sound(metrics={"bad": object()})])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_compressed_file_holds_no_time_of_writing(tmp_path):
    write_trajectories(tmp_path / "t.gz", [sound()])
    assert (tmp_path / "t.gz").read_bytes()[4:8] == bytes(4)


def test_numpy_numbers_in_metrics_are_written_as_numbers(tmp_path):
    write_trajectories(tmp_path / "t", [sound(metrics={"n": np.float32(0.5)}, reward=np.int64(1))])
    (row,) = read_trajectories(tmp_path / "t")
    assert (row.metrics, row.reward) == ({"n": 0.5}, 1)


HEADER = b'{"format": "agentjax.trajectories", "version": 1}\n'


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "is not a trajectory file"),
        (b"step,reward\n", "is not a trajectory file"),
        (b"[1]\n", "is not a trajectory file"),
        (b'{"format": "agentjax.trajectories", "version": 2}\n', "version 2; this AgentJAX reads version 1"),
        (b'{"format": "agentjax.trajectories"}\n', "version None"),
        (HEADER + b'{"task_id": "a"', "line 2, is not a trajectory: JSONDecodeError"),
        (HEADER + b'{"task_id": "a"}\n', "line 2, is not a trajectory: KeyError"),
        (HEADER + b"\xff\n", "is broken"),
    ],
)
@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_file_that_is_not_one_is_refused(tmp_path, content, error, name):
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(ValueError, match=error):
        read_trajectories(tmp_path / name)


def test_a_compressed_file_that_is_cut_short_or_never_was_one_is_refused(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    write_trajectories(path, [sound()])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="is broken"):
        read_trajectories(path)
    path.write_bytes(HEADER)
    with pytest.raises(ValueError, match="is broken"):
        read_header(path)


def test_unknown_fields_and_reserved_headers_are_refused(tmp_path):
    with pytest.raises(TypeError, match="surprise"):
        trajectory_from_json(trajectory_to_json(sound()) | {"surprise": 1})
    with pytest.raises(ValueError, match="must not set version"):
        write_trajectories(tmp_path / "t", [], {"version": 3})


def row_of(*values, dtype=np.int32):
    return np.array(values, dtype)


PROMPT = Segment(Source.PROMPT, row_of(1, 2))
SAID = Segment(Source.POLICY, row_of(3, 4, 5), row_of(-0.5, -1, 0, dtype=np.float32), row_of(0, 0, 1))
SEEN = Segment(Source.ENVIRONMENT, row_of(6, 7))


def sound(**changes):
    row = Trajectory("t", "g", 3, 0, (PROMPT, SAID, SEEN), (), reward=1.0, stop=StopReason.DONE)
    return dataclasses.replace(row, **changes)


def said(**changes):
    return sound(segments=(PROMPT, dataclasses.replace(SAID, **changes), SEEN))


def floats(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (sound(segments=()), "it has no tokens"),
        (sound(segments=(SAID, SEEN)), "it begins with a sampled token"),
        (said(logprobs=None), r"segment 1 \(policy\): sampled tokens have no logprobs"),
        (said(policy_versions=None), "sampled tokens have no policy versions"),
        (said(logprobs=floats(-1, -1)), "lengths disagree: 3 ids, 2 logprobs, 3 policy versions"),
        (said(policy_versions=row_of(0)), "lengths disagree: 3 ids, 3 logprobs, 1 policy versions"),
        (said(ids=row_of(3, 4)), "lengths disagree: 2 ids, 3 logprobs, 3 policy versions"),
        (said(logprobs=floats(-1, np.nan, -1)), "the logprob of token 1 is not finite"),
        (said(logprobs=floats(-1, -1, -np.inf)), "the logprob of token 2 is not finite"),
        (said(logprobs=floats(-1, 0.25, -1)), "logprob 0.25 of token 1 is positive"),
        (said(logprobs=np.full(3, -1.0)), "float32 and int32, got float64 and int32"),
        (said(policy_versions=row_of(0, -1, 0)), "policy version -1 is negative"),
        (said(ids=row_of(3, -4, 5)), "id -4 is negative"),
        (said(ids=np.array([3, 4, 5])), "one row of int32, got int64"),
        (said(source=Source.ENVIRONMENT), r"segment 1 \(environment\): tokens that were not sampled have logprobs"),
        (sound(reward=None), "it ended with done and has no reward"),
        (sound(stop=StopReason.ENV_CRASH), "it ended by the fault env_crash and yet has reward 1.0"),
        (sound(reward=float("nan")), "reward nan is not finite"),
    ],
)
def test_every_corruption_is_refused_and_named(row, fault):
    with pytest.raises(IntegrityError, match=f"task 't', group 'g', sample 3, branch 0: .*{fault}"):
        check(row)


def test_rounding_above_zero_is_no_fault():
    check(said(logprobs=floats(-1, 1e-6, -1)))


@given(trajectories, st.integers(0, 30))
def test_a_row_may_lose_only_what_follows_the_last_sampled_token(row, length):
    needed = int(np.flatnonzero(row.loss_mask)[-1]) + 1
    if length < needed:
        for refuse in (lambda: check(row, row_length=length), lambda: truncate(row, length)):
            with pytest.raises(IntegrityError, match=f"a row of {length} tokens cuts segment"):
                refuse()
        return
    check(row, row_length=length)
    cut = truncate(row, length)
    check(cut)
    np.testing.assert_array_equal(cut.tokens, row.tokens[:length])
    np.testing.assert_array_equal(cut.loss_mask, row.loss_mask[:length])
    np.testing.assert_array_equal(cut.sampler_logprobs, row.sampler_logprobs[:length])

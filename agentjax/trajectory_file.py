"""Trajectory files: trajectories in, JSON lines out, and back, bit for bit; and what a row must be to be trained.

The first line is a header, `{"format": "agentjax.trajectories", "version": 1, ...}`; each further line is a trajectory.
Float32 arrays are base64 of their little-endian bytes. A path that ends in ".gz" is compressed.
"""

import base64
import contextlib
import dataclasses
import gzip
import io
import json
import os
import pathlib
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np
from jaxtyping import Float32

from agentjax.trajectory import Segment, Source, StopReason, ToolUse, Trajectory, Turn

FORMAT = "agentjax.trajectories"
VERSION = 1

LOGPROB_ROUNDING = 1e-4
"""How far above 0 a logprob may lie, in nats: float32 rounds a logit and the log-sum of all of them apart."""


class IntegrityError(ValueError):
    """A trajectory that must not be trained.

    Attributes:
        fault: What is wrong with it.
    """

    def __init__(self, trajectory: Trajectory, fault: str):
        super().__init__(
            f"trajectory of task {trajectory.task_id!r}, group {trajectory.group_id!r}, sample "
            f"{trajectory.sample_index}, branch {trajectory.branch}: {fault}"
        )
        self.fault = fault


def write_trajectories(
    path: str | os.PathLike[str], trajectories: Iterable[Trajectory], header: Mapping[str, Any] | None = None
) -> None:
    """Writes a trajectory file. It appears complete or not at all; the same input gives the same bytes.

    Args:
        path: Where; a file that is there is replaced.
        trajectories: What, in order.
        header: Facts about the whole file, such as the step; JSON values.

    Raises:
        ValueError: If the header sets "format" or "version".
    """
    reserved = {"format", "version"} & set(header or {})
    if reserved:
        raise ValueError(f"The header of a trajectory file must not set {', '.join(sorted(reserved))}.")
    first = {"format": FORMAT, "version": VERSION, **(header or {})}
    with _replacing(pathlib.Path(path)) as raw, _text_of(raw, compress=_is_gz(path)) as file:
        for line in (first, *map(trajectory_to_json, trajectories)):
            file.write(json.dumps(line, default=_plain) + "\n")


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a trajectory file, format and version included.

    Raises:
        ValueError: If the file is no trajectory file, or of an unknown version.
    """
    return _header(path, _lines(path))


def read_trajectories(path: str | os.PathLike[str]) -> tuple[Trajectory, ...]:
    """The trajectories of a file, in order.

    Raises:
        ValueError: If the file is no trajectory file, of an unknown version, or broken; it names the line.
    """
    lines = _lines(path)
    _header(path, lines)
    return tuple(_read_line(path, number, line) for number, line in enumerate(lines, start=2))


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as JSON values, for a file, a checkpoint or a viewer."""
    fields = {field.name: getattr(trajectory, field.name) for field in dataclasses.fields(trajectory)}
    return fields | {
        "segments": [segment_to_json(segment) for segment in trajectory.segments],
        "turns": [dataclasses.asdict(turn) for turn in trajectory.turns],
        "reward_parts": dict(trajectory.reward_parts),
        "metrics": dict(trajectory.metrics),
    }


def trajectory_from_json(fields: Mapping[str, Any]) -> Trajectory:
    """The trajectory that `trajectory_to_json` was given.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: If the fields are not those of a trajectory.
    """
    return Trajectory(
        **{
            **fields,
            "segments": tuple(segment_from_json(segment) for segment in fields["segments"]),
            "turns": tuple(_turn_from_json(turn) for turn in fields["turns"]),
            "stop": StopReason(fields["stop"]),
        }
    )


def segment_to_json(segment: Segment) -> dict[str, Any]:
    """A segment as JSON values."""
    fields: dict[str, Any] = {"source": segment.source, "ids": segment.ids.tolist()}
    if segment.logprobs is not None:
        fields["logprobs"] = base64.b64encode(segment.logprobs.astype("<f4").tobytes()).decode()
    if segment.policy_versions is not None:
        fields["policy_versions"] = segment.policy_versions.tolist()
    return fields


def segment_from_json(fields: Mapping[str, Any]) -> Segment:
    """The segment that `segment_to_json` was given."""
    return Segment(
        source=Source(fields["source"]),
        ids=np.array(fields["ids"], np.int32),
        logprobs=_float32(fields["logprobs"]) if "logprobs" in fields else None,
        policy_versions=np.array(fields["policy_versions"], np.int32) if "policy_versions" in fields else None,
    )


def _float32(text: str) -> Float32[np.ndarray, " T"]:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)


def _turn_from_json(fields: Mapping[str, Any]) -> Turn:
    return Turn(**{**fields, "tools": tuple(ToolUse(**tool) for tool in fields["tools"])})


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"A trajectory file holds JSON values, got {value!r} of type {type(value).__name__}.")


def _lines(path: str | os.PathLike[str]) -> Iterator[str]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if _is_gz(path) else open(path, encoding="utf-8") as file:
            yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{os.fspath(path)} is broken: {error}") from error


def _header(path: str | os.PathLike[str], lines: Iterator[str]) -> dict[str, Any]:
    try:
        header = json.loads(next(lines, ""))
    except json.JSONDecodeError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{os.fspath(path)} is not a trajectory file: its first line is no {FORMAT} header.")
    if header.get("version") != VERSION:
        raise ValueError(
            f"{os.fspath(path)} is a trajectory file of version {header.get('version')!r}; this AgentJAX reads version "
            f"{VERSION}. Read it with the AgentJAX that wrote it."
        )
    return header


def _read_line(path: str | os.PathLike[str], number: int, line: str) -> Trajectory:
    try:
        return trajectory_from_json(json.loads(line))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{os.fspath(path)}, line {number}, is not a trajectory: {error!r}") from error


def _is_gz(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).endswith(".gz")


@contextlib.contextmanager
def _text_of(raw: IO[bytes], *, compress: bool) -> Iterator[IO[str]]:
    """Text written to the result reaches `raw` as UTF-8, compressed or not; the gzip header holds no name or time."""
    with contextlib.ExitStack() as stack:
        packed = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0)) if compress else raw
        text = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
        yield text
        text.flush()
        text.detach()


@contextlib.contextmanager
def _replacing(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """A new file that takes the path when all went well, and leaves no trace when it did not."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def check(trajectory: Trajectory, *, row_length: int | None = None) -> None:
    """Refuses a trajectory whose record contradicts itself or whose trained tokens were not sampled.

    Args:
        trajectory: The row.
        row_length: Tokens of the row the learner will see; None for all of them.

    Raises:
        IntegrityError: If a sampled token lacks a finite logprob <= 0 or a policy version, another token has one,
            lengths disagree, the stream is empty or begins with a sampled token, the row cuts a sampled token off, or
            a trajectory without a fault lacks a finite reward, or one with a fault has a reward.
    """
    fault = next(_faults(trajectory, row_length), None)
    if fault:
        raise IntegrityError(trajectory, fault)


def truncate(trajectory: Trajectory, max_tokens: int) -> Trajectory:
    """Drops what follows the last sampled token, as far as needed for the stream to fit.

    Raises:
        IntegrityError: If a sampled token would be cut off.
    """
    fault = next(_cut_turns(trajectory, max_tokens), None)
    if fault:
        raise IntegrityError(trajectory, fault)
    segments, room = [], max_tokens
    for segment in trajectory.segments:
        if room < len(segment.ids):
            segment = dataclasses.replace(segment, ids=segment.ids[:room])
        room -= len(segment.ids)
        segments.append(segment)
    return dataclasses.replace(trajectory, segments=tuple(segment for segment in segments if len(segment.ids)))


def _faults(trajectory: Trajectory, row_length: int | None) -> Iterator[str]:
    if not sum(len(segment.ids) for segment in trajectory.segments):
        yield "it has no tokens"
        return
    first = next(segment for segment in trajectory.segments if len(segment.ids))
    if first.source is Source.POLICY:
        yield "it begins with a sampled token, which no token predicts"
    for index, segment in enumerate(trajectory.segments):
        faults = _sampled_faults if segment.source is Source.POLICY else _inserted_faults
        for fault in (*_id_faults(segment), *faults(segment)):
            yield f"segment {index} ({segment.source}): {fault}"
    if row_length is not None:
        yield from _cut_turns(trajectory, row_length)
    yield from _reward_faults(trajectory)


def _id_faults(segment: Segment) -> Iterator[str]:
    if segment.ids.ndim != 1 or segment.ids.dtype != np.int32:
        yield f"ids must be one row of int32, got {segment.ids.dtype} of shape {segment.ids.shape}"
    elif (segment.ids < 0).any():
        yield f"id {segment.ids.min()} is negative"


def _sampled_faults(segment: Segment) -> Iterator[str]:
    logprobs, versions = segment.logprobs, segment.policy_versions
    if logprobs is None or versions is None:
        yield f"sampled tokens have no {'logprobs' if logprobs is None else 'policy versions'}"
        return
    if not logprobs.shape == versions.shape == segment.ids.shape:
        lengths = f"{len(segment.ids)} ids, {len(logprobs)} logprobs, {len(versions)} policy versions"
        yield f"lengths disagree: {lengths}"
    if logprobs.dtype != np.float32 or versions.dtype != np.int32:
        yield f"logprobs and policy versions must be float32 and int32, got {logprobs.dtype} and {versions.dtype}"
    if not np.isfinite(logprobs).all():
        yield f"the logprob of token {np.flatnonzero(~np.isfinite(logprobs))[0]} is not finite"
    elif (logprobs > LOGPROB_ROUNDING).any():
        yield f"logprob {logprobs.max()} of token {logprobs.argmax()} is positive"
    if (versions < 0).any():
        yield f"policy version {versions.min()} is negative"


def _inserted_faults(segment: Segment) -> Iterator[str]:
    if segment.logprobs is not None or segment.policy_versions is not None:
        yield "tokens that were not sampled have logprobs or policy versions"


def _cut_turns(trajectory: Trajectory, row_length: int) -> Iterator[str]:
    start = 0
    for index, segment in enumerate(trajectory.segments):
        stop = start + len(segment.ids)
        if segment.source is Source.POLICY and stop > row_length:
            yield f"a row of {row_length} tokens cuts segment {index}, sampled tokens {start} to {stop - 1}"
        start = stop


def _reward_faults(trajectory: Trajectory) -> Iterator[str]:
    reward, stop = trajectory.reward, trajectory.stop
    if stop.is_fault and reward is not None:
        yield f"it ended by the fault {stop} and yet has reward {reward}"
    elif not stop.is_fault and reward is None:
        yield f"it ended with {stop} and has no reward"
    elif reward is not None and not np.isfinite(reward):
        yield f"reward {reward} is not finite"

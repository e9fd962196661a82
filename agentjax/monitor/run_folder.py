"""Run folder: where everything that a run leaves behind has its place."""

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class RunFolder:
    """The files of one run.

    Attributes:
        path: The folder.
        config: Its config, as JSON.
        metrics: One JSON object a line: of a step, {"phase", "step", metric...}; of an evaluation, the phase is "eval".
        tensorboard: TensorBoard events, a folder per phase.
        trajectories: Kept trajectories, a file per step.
        checkpoints: Checkpoints.
        curves: The curves, a PNG.
        summary: The final summary, as JSON.
    """

    def __init__(self, path: str | Path):
        """Name the files; nothing is made."""
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.trajectories = self.path / "trajectories"
        self.checkpoints = self.path / "checkpoints"
        self.curves = self.path / "curves.png"
        self.summary = self.path / "summary.json"

    def create(self, config_json: str) -> None:
        """Make the folder and write the config; what is there already stays."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.trajectories.mkdir(exist_ok=True)
        write_atomically(self.config, config_json)

    def clear(self) -> None:
        """Remove what an earlier run measured and sampled, for one that starts anew; checkpoints stay."""
        for file in (self.metrics, self.curves, self.summary):
            file.unlink(missing_ok=True)
        for folder in (self.tensorboard, self.trajectories):
            shutil.rmtree(folder, ignore_errors=True)
        self.trajectories.mkdir()

    def trajectories_of(self, phase: str, step: int) -> Path:
        """The file for the trajectories of a step."""
        return self.trajectories / f"{phase}_{step:06d}.jsonl"


class MetricsFile:
    """An append-only file of JSON lines that can be cut back to what a checkpoint had seen."""

    def __init__(self, path: Path):
        """Open the file at its first record."""
        self.path = path
        self.records = 0

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line, in one write, so that a kill leaves whole lines. A number that is not finite becomes null."""
        line = json.dumps({key: _finite(value) for key, value in record.items()}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
        self.records += 1

    def keep(self, records: int) -> None:
        """Cut the file back to its first records; what came after the checkpoint will be computed again."""
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        kept = lines[:records]
        if kept != lines:
            os.truncate(self.path, sum(map(len, kept)))
        self.records = len(kept)

    def read(self) -> list[dict[str, Any]]:
        """Every record. A last line that a power cut left unfinished is skipped."""
        return read_metrics(self.path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file, none if there is no file. An unfinished last line is skipped."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def write_atomically(path: Path, text: str) -> None:
    """Write a file such that a reader sees the old text or the new one, never half."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text)
    os.replace(beside, path)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

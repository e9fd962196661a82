"""TensorBoard events: metrics of a step in, event files out, one folder per phase."""

from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter


class Events:
    """TensorBoard writers by phase. After a resume, what a phase wrote beyond its checkpoint is hidden."""

    def __init__(self, folder: Path):
        """Write nothing before the first metrics."""
        self._folder = folder
        self._writers: dict[str, SummaryWriter] = {}
        self._resumed_from: Mapping[str, int] = {}

    def resume(self, steps: Mapping[str, int]) -> None:
        """Go on after the last step of each phase."""
        self._resumed_from = steps

    def write(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a step."""
        if phase not in self._writers:
            purge_step = self._resumed_from[phase] + 1 if phase in self._resumed_from else None
            self._writers[phase] = SummaryWriter(str(self._folder / phase), purge_step=purge_step)
        for name, value in metrics.items():
            self._writers[phase].add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

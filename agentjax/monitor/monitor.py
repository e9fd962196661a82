"""Monitor: the metrics of each step in; a live view, a run folder and a summary out."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from agentjax.config import Config, to_json
from agentjax.monitor import names
from agentjax.monitor.board import Board
from agentjax.monitor.curves import draw_curves
from agentjax.monitor.events import Events
from agentjax.monitor.live import make_view
from agentjax.monitor.run_folder import MetricsFile, RunFolder
from agentjax.monitor.summary import Summary, render_summary, summarize, write_summary
from agentjax.monitor.transcript import Decode
from agentjax.trajectory import Trajectory

_DRAW_EVERY_S = 30.0  # drawing takes a second of a core that the run could use


class Monitor:
    """What a person sees of a run, and what is kept of it.

    A run that goes on calls `restore` with what `state` gave at the checkpoint, before anything else; then the files
    are cut back to it. A run that does not starts its files anew.

    Attributes:
        folder: The run folder.
    """

    def __init__(
        self,
        config: Config,
        *,
        decode: Decode,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        """Make the run folder and take the screen.

        Args:
            config: The experiment.
            decode: Ids to text, special tokens by name, for sample transcripts.
            console: Where to show it; standard output if None.
            now: Gives monotonic seconds.
        """
        self.folder = RunFolder(config.run_dir)
        self.folder.create(to_json(config))
        self._config = config
        self._now = now
        self._began = self._stepped = now()
        self._drawn = now()
        self._seconds_before = 0.0
        self._metrics = MetricsFile(self.folder.metrics)
        self._events = Events(self.folder.tensorboard) if config.monitor.tensorboard else None
        self._steps: dict[str, int] = {}
        self._clean = False
        self._console = console or Console()
        totals = {"sft": config.sft.steps, "grpo": config.train.steps}
        self._board = Board(name=config.name, totals=totals, players=config.env.players)
        self._view = make_view(config.monitor.live, self._console, decode)
        self._view.show(self._board)

    def status(self, text: str) -> None:
        """Say what is being done, such as "compiling the sampler", until the next step is shown."""
        self._show(dataclasses.replace(self._board, status=text))

    def notice(self, text: str) -> None:
        """Say something that stays on the screen, such as a warning."""
        self._console.print(f"[yellow]{text}[/]", highlight=False)

    def step(self, phase: str, step: int, metrics: Mapping[str, float], sample: Trajectory | None = None) -> None:
        """Record an update.

        Args:
            phase: "sft" or "grpo".
            step: Updates done in the phase, this one included.
            metrics: Its metrics, by `group/name`; see `agentjax.monitor.names` for those that are shown.
            sample: A trajectory to show.
        """
        seconds, self._stepped = self._now() - self._stepped, self._now()
        self._record(phase, step, metrics)
        self._show(self._board.after_step(phase, step, metrics, sample, seconds=seconds))

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation after so many GRPO updates, and draw the curves so far, if that was not done just now."""
        self._record("eval", step, metrics)
        successes = (*self._board.successes, *([metrics[names.SUCCESS]] if names.SUCCESS in metrics else []))
        self._show(dataclasses.replace(self._board, successes=successes, status=""))
        if self._now() - self._drawn >= _DRAW_EVERY_S:
            self.draw_curves()
        self._stepped = self._now()  # the pace is that of updates alone

    def keeps_trajectories(self, step: int) -> bool:
        """Whether the trajectories of a GRPO step are to be written, to `folder.trajectories_of`."""
        every = self._config.monitor.trajectories_every
        return every > 0 and (step == 1 or step % every == 0)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the monitor; JSON values."""
        return {
            "records": self._metrics.records,
            "steps": dict(self._steps),
            "seconds": self.seconds,
            "successes": list(self._board.successes),
            "rewards": list(self._board.rewards),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave: later records are cut off, and the clock goes on from there."""
        self._clean = True
        self._metrics.keep(state["records"])
        self._steps = dict(state["steps"])
        self._seconds_before = state["seconds"]
        if self._events is not None:
            self._events.resume(self._steps)
        history: dict[str, Any] = {"successes": tuple(state["successes"]), "rewards": tuple(state["rewards"])}
        self._show(dataclasses.replace(self._board, **history))

    @property
    def seconds(self) -> float:
        """Wall seconds of the run, earlier sessions included up to the checkpoint they left."""
        return self._seconds_before + self._now() - self._began

    def draw_curves(self) -> None:
        """Draw `curves.png` from what was recorded so far."""
        self._drawn = self._now()
        draw_curves(self._metrics.read(), self.folder.curves, title=self._config.name)

    def summary(self, *, compiles_after_warmup: int, ended: str = "all steps done") -> Summary:
        """End the run: draw the curves, write `summary.json`, and show what improved.

        Args:
            compiles_after_warmup: XLA compilations after the first training step of each phase.
            ended: Why it ended, for people.
        """
        self.close()
        summary = summarize(
            self._metrics.read(),
            train_seconds=self.seconds,
            compiles_after_warmup=compiles_after_warmup,
            ended=ended,
        )
        self.draw_curves()
        write_summary(summary, self.folder)
        self._console.print(render_summary(summary, self.folder, name=self._config.name))
        return summary

    def close(self) -> None:
        """Flush the files and give the screen back. May be called again."""
        self._view.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()

    def _record(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        if not self._clean:
            self.folder.clear()
            self._clean = True
        values = {name: float(value) for name, value in metrics.items()}
        self._metrics.append({"phase": phase, "step": step, **values})
        self._steps[phase] = step
        if self._events is not None:
            self._events.write(phase, step, values)

    def _show(self, board: Board) -> None:
        self._board = dataclasses.replace(board, elapsed_s=self.seconds)
        self._view.show(self._board)

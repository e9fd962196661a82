"""Live view: boards in, a terminal screen or plain lines out."""

import dataclasses
import time
from collections.abc import Callable
from typing import Literal, Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from agentjax.monitor.board import Board
from agentjax.monitor.draw import log_line, render, success_text
from agentjax.monitor.transcript import Decode, transcript

_LOG_WIDTH = 120  # columns of a transcript in a log, which has no width of its own


class View(Protocol):
    """Shows boards to a person."""

    def show(self, board: Board) -> None:
        """Show the newest board."""
        ...

    def close(self) -> None:
        """Leave the screen in order."""
        ...


class LiveView:
    """A screen that is redrawn in place, for terminals."""

    def __init__(self, console: Console, decode: Decode, *, now: Callable[[], float] = time.monotonic):
        """Take over the bottom of the terminal.

        Args:
            console: Where to draw.
            decode: Ids to text, for sample transcripts.
            now: Gives monotonic seconds.
        """
        self._shown: tuple[Board, float] | None = None  # and since when; one value, as a thread draws it
        self._now = now
        self._decode = decode
        self._console = console
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def show(self, board: Board) -> None:
        """Draw this board from now on."""
        self._shown = board, self._now()

    def close(self) -> None:
        """Draw once more and give the terminal back."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        if self._shown is None:
            return ""
        board, since = self._shown
        board = dataclasses.replace(board, elapsed_s=board.elapsed_s + self._now() - since)  # goes on within a step
        return render(board, self._decode, width=self._console.width)


class LogView:
    """Plain lines, for pipes and files: one a step, at most one a second; a sample transcript after an evaluation."""

    def __init__(
        self, console: Console, decode: Decode, *, every_s: float = 1.0, now: Callable[[], float] = time.monotonic
    ):
        """Write nothing yet.

        Args:
            console: Where to write.
            decode: Ids to text, for sample transcripts.
            every_s: Least seconds between two lines about steps; the last step of a phase always has its line.
            now: Gives monotonic seconds.
        """
        self._console = console
        self._decode = decode
        self._every_s = every_s
        self._now = now
        self._shown_at = -every_s
        self._last: Board | None = None

    def show(self, board: Board) -> None:
        """Write what is new."""
        last, self._last = self._last, board
        if board.status:
            if last is None or board.status != last.status:
                self._print(Text(board.status))
        elif last is not None and board.successes != last.successes:
            self._print(Text(f"{board.name}: held-out success {success_text(board.successes)}  {board.story}".rstrip()))
            if board.sample is not None:
                self._print(transcript(board.sample, self._decode, width=max(self._console.width, _LOG_WIDTH)))
        elif board.phase and (board.step == board.total or self._now() - self._shown_at >= self._every_s):
            self._shown_at = self._now()
            self._print(Text(log_line(board)))

    def close(self) -> None:
        """Nothing is left to do."""

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def make_view(live: Literal["auto", "on", "off"], console: Console, decode: Decode) -> View:
    """The screen if it is asked for, or if the console is a terminal; else plain lines."""
    on_screen = live == "on" or (live == "auto" and console.is_terminal)
    return LiveView(console, decode) if on_screen else LogView(console, decode)

"""Drawing: a board in, a screen or a line of text out."""

import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentjax.monitor import names
from agentjax.monitor.board import PHASES, Board, time_split
from agentjax.monitor.transcript import Decode, transcript

_BLOCKS = "▁▂▃▄▅▆▇█"
_PART_COLOURS = ("green", "cyan", "blue", "yellow", "magenta", "bright_magenta", "white", "bright_black")
_PART_STYLES: dict[str, str] = dict(zip(names.TIME_SPLIT, _PART_COLOURS, strict=True))


def log_line(board: Board) -> str:
    """A step in one line."""
    parts = [f"{PHASES.get(board.phase, board.phase)} {board.step}/{board.total}"]
    parts += [f"{label} {text}" for label, text in _numbers(board) if text != "–"]
    if board.step_s:
        parts.append(f"{board.step_s[-1]:.1f} s")
    if board.eta_s:
        parts.append(f"{clock(board.eta_s)} left")
    return "  ".join(parts)


def render(board: Board, decode: Decode, *, width: int) -> RenderableType:
    """A board as a screen.

    Args:
        board: What to draw.
        decode: Ids to text, for the sample transcript.
        width: Columns.
    """
    inner = max(min(width, 110) - 4, 30)
    parts: list[RenderableType] = [_progress(board, inner), _table(board)]
    parts += _spark(board)
    if split := time_split(board.metrics):
        parts.append(_split_bar(split, inner))
    if board.story:
        parts.append(Text(board.story, style="italic"))
    if board.sample is not None:
        parts.append(transcript(board.sample, decode, width=inner))
    if board.status:
        parts.append(Text(f"{board.status} ...", style="dim"))
    title = f"[bold]agentjax[/] {board.name}"
    return Panel(Group(*parts), title=title, title_align="left", box=box.ROUNDED, width=inner + 4)


def _progress(board: Board, width: int) -> RenderableType:
    if not board.phase:
        return Text("starting", style="dim")
    left = "" if board.eta_s is None else f"  {clock(board.eta_s)} left"
    row = Table.grid(padding=(0, 1))
    row.add_row(
        Text(f"{PHASES.get(board.phase, board.phase)} {board.step}/{board.total}", style="bold"),
        ProgressBar(total=max(board.total, 1), completed=board.step, width=max(width - 45, 10)),
        Text(f"{clock(board.elapsed_s)} so far{left}", style="dim"),
    )
    return row


def _table(board: Board) -> Table:
    """The numbers, in two columns."""
    numbers = _numbers(board)
    half = (len(numbers) + 1) // 2
    table = Table.grid(padding=(0, 2))
    for column_style in ("dim", "", "dim", ""):
        table.add_column(style=column_style, no_wrap=True)
    for left, right in zip(numbers[:half], numbers[half:] + [("", "")], strict=False):
        table.add_row(*left, *right)
    return table


def _numbers(board: Board) -> list[tuple[str, str]]:
    """Label and value of each number shown; those of a rollout only where there is one."""
    m = board.metrics
    loss = [("loss", number(m.get(names.LOSS), "{:.4f}"))]
    if board.phase == "sft":
        return loss
    return [
        ("reward", number(m.get(names.REWARD), "{:.3f}")),
        ("held-out success", success_text(board.successes)),
        *loss,
        ("tool calls/episode", number(m.get(names.TOOL_CALLS_MEAN), "{:.2f}")),
        ("tokens/s", number(m.get(names.TOKENS_PER_S), "{:,.0f}")),
        ("slots busy", number(m.get(names.OCCUPANCY), "{:.0%}")),
        ("tool wait", number(m.get("time/tool_wait_s"), "{:.1f} s")),
        ("|sampler - trainer|", number(m.get(names.MISMATCH), "{:.1e}")),
    ]


def _spark(board: Board) -> list[Text]:
    """How loss (SFT) or reward (GRPO) went over the last steps."""
    if board.phase == "sft":
        label, line = "loss", sparkline(board.losses)
    else:
        label, line = "reward", sparkline(board.rewards, low=0.0, high=1.0)
    return [Text.assemble((f"{label} ", "dim"), (line, "green"))] if line else []


def _split_bar(split: Mapping[str, float], width: int) -> Text:
    """Where the time of the step went: a bar in the proportions of its parts, and its legend."""
    whole = sum(split.values())
    bar = Text()
    for part, seconds in split.items():
        bar.append("█" * round((width - 1) * seconds / whole), style=_PART_STYLES[part])
    legend = Text("  ").join(
        Text.assemble(("■ ", _PART_STYLES[part]), f"{part.replace('_', ' ')} {seconds / whole:.0%}")
        for part, seconds in split.items()
    )
    return Text("\n").join([bar, legend])


def sparkline(values: Sequence[float], *, low: float | None = None, high: float | None = None, width: int = 24) -> str:
    """The last values as block characters, between their own bounds, or wider ones if given."""
    shown = [value for value in values[-width:] if math.isfinite(value)]
    if not shown:
        return ""
    low = min(shown) if low is None else min(low, *shown)
    high = max(shown) if high is None else max(high, *shown)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((v - low) * scale)] for v in shown)


def success_text(successes: Sequence[float]) -> str:
    """The first success and the last: "0.00 -> 0.95"."""
    if not successes:
        return "–"
    return f"{successes[0]:.2f}" if len(successes) == 1 else f"{successes[0]:.2f} -> {successes[-1]:.2f}"


def number(value: float | None, pattern: str) -> str:
    """A number for people; a dash for one that is not there."""
    return "–" if value is None else pattern.format(value)


def clock(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

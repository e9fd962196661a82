"""Summary: the records of a run in, what improved, how long it took and where the files are out."""

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table

from agentjax.monitor import names
from agentjax.monitor.draw import clock, number
from agentjax.monitor.run_folder import RunFolder, write_atomically


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """How a run went. The fields are the keys of `summary.json`.

    Attributes:
        success_before: Held-out greedy success before the first GRPO update; None if it was not measured.
        success_after: The last one measured.
        train_seconds: Wall seconds of SFT, GRPO and their evaluations, over all sessions of the run.
        steps: GRPO updates.
        sft_steps: SFT updates.
        tool_calls: Tool calls of the sampled episodes.
        episodes: Sampled episodes.
        tokens_per_s: Sampled tokens over wall seconds of the rollout, median over steps; None without GRPO.
        compiles_after_warmup: XLA compilations after the first training step of each phase.
        ended: Why the run ended.
    """

    success_before: float | None
    success_after: float | None
    train_seconds: float
    steps: int
    sft_steps: int
    tool_calls: int
    episodes: int
    tokens_per_s: float | None
    compiles_after_warmup: int
    ended: str


def summarize(
    records: Sequence[Mapping[str, Any]], *, train_seconds: float, compiles_after_warmup: int, ended: str
) -> Summary:
    """The summary of a run.

    Args:
        records: Records of its metrics file.
        train_seconds: See `Summary`.
        compiles_after_warmup: See `Summary`.
        ended: Why it ended, such as "all steps done".
    """
    grpo = [record for record in records if record["phase"] == "grpo"]
    successes = _values(records, "eval", names.SUCCESS)
    rates = _values(records, "grpo", names.TOKENS_PER_S)
    return Summary(
        success_before=successes[0] if successes else None,
        success_after=successes[-1] if successes else None,
        train_seconds=round(train_seconds, 3),
        steps=len(grpo),
        sft_steps=sum(record["phase"] == "sft" for record in records),
        tool_calls=int(sum(_values(records, "grpo", names.TOOL_CALLS))),
        episodes=int(sum(_values(records, "grpo", names.EPISODES))),
        tokens_per_s=statistics.median(rates) if rates else None,
        compiles_after_warmup=compiles_after_warmup,
        ended=ended,
    )


def _values(records: Sequence[Mapping[str, Any]], phase: str, name: str) -> list[float]:
    return [r[name] for r in records if r["phase"] == phase and r.get(name) is not None]


def write_summary(summary: Summary, folder: RunFolder) -> None:
    """Write `summary.json`."""
    write_atomically(folder.summary, json.dumps(dataclasses.asdict(summary), indent=2) + "\n")


def render_summary(summary: Summary, folder: RunFolder, *, name: str) -> RenderableType:
    """The summary for people: what improved first, then what it took, then the files."""
    before, after = number(summary.success_before, "{:.1%}"), number(summary.success_after, "{:.1%}")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_row("held-out success", f"{before} -> [bold green]{after}[/]")
    table.add_row(
        "took", f"{clock(summary.train_seconds)} for {summary.sft_steps} SFT and {summary.steps} GRPO updates"
    )
    table.add_row("sampled", f"{summary.episodes:,} episodes, {summary.tool_calls:,} tool calls")
    table.add_row("speed", f"{number(summary.tokens_per_s, '{:,.0f}')} tokens/s")
    table.add_row("compilations", f"{summary.compiles_after_warmup} after the warm-up")
    for label, path in (("curves", folder.curves), ("metrics", folder.metrics), ("checkpoints", folder.checkpoints)):
        table.add_row(label, str(path))
    return Panel(table, title=f"[bold]{name}[/]: {summary.ended}", title_align="left", expand=False)

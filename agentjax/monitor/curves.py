"""Curves: the records of a run in, one PNG out."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from agentjax.monitor import names

_INK, _BLUE, _ORANGE, _GREY, _GRID = "#222222", "#2563a8", "#d9730d", "#8a8f98", "#e4e6ea"

Records = Sequence[Mapping[str, Any]]


def draw_curves(records: Records, path: Path, *, title: str) -> None:
    """Draw the course of a run: loss, reward, held-out success, tool calls, lengths, and sampler against trainer.

    Args:
        records: Records of a metrics file: "phase", "step" and metrics.
        path: The PNG; replaced in one move.
        title: Names the run.
    """
    figure = Figure(figsize=(12, 6.4), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=_INK)
    axes = figure.subplots(2, 3).flat
    for axis, panel in zip(axes, (_loss, _reward, _success, _tool_calls, _lengths, _mismatch), strict=True):
        panel(axis, records)
        _tidy(axis)
    beside = path.with_name(path.name + ".part")
    figure.savefig(beside, format="png")
    os.replace(beside, path)


def _loss(axis: Axes, records: Records) -> None:
    axis.set_title("SFT: loss per token")
    _plot(axis, records, "sft", names.LOSS, _BLUE)
    axis.set_xlabel("SFT step")


def _reward(axis: Axes, records: Records) -> None:
    axis.set_title("GRPO: reward of the samples")
    _plot(axis, records, "grpo", names.REWARD, _BLUE, "mean", width=2.2)
    _plot(axis, records, "grpo", names.REWARD_WITH_TOOL, _ORANGE, "with a tool call")
    _plot(axis, records, "grpo", names.REWARD_WITHOUT_TOOL, _GREY, "without")


def _success(axis: Axes, records: Records) -> None:
    axis.set_title("Held-out success, greedy")
    steps, values = _series(records, "eval", names.SUCCESS)
    axis.set_ylim(-0.03, 1.03)
    if values:
        axis.plot(steps, values, color=_BLUE, linewidth=2, marker="o", markersize=4)
        axis.annotate(f"{values[-1]:.2f}", (steps[-1], values[-1]), (-4, -14), textcoords="offset points", ha="right")


def _tool_calls(axis: Axes, records: Records) -> None:
    axis.set_title("GRPO: tool calls")
    _plot(axis, records, "grpo", names.TOOL_CALLS_MEAN, _BLUE, "calls per episode")
    _plot(axis, records, "grpo", names.TOOL_USE, _ORANGE, "share of episodes with one")
    axis.set_ylim(bottom=0)


def _lengths(axis: Axes, records: Records) -> None:
    axis.set_title("GRPO: tokens per episode")
    _plot(axis, records, "grpo", names.TOTAL_TOKENS_MEAN, _GREY, "all")
    _plot(axis, records, "grpo", names.TOKENS_MEAN, _BLUE, "sampled")
    axis.set_ylim(bottom=0)


def _mismatch(axis: Axes, records: Records) -> None:
    axis.set_title("GRPO: |sampler - trainer logprob|, nats")
    _plot(axis, records, "grpo", names.MISMATCH_MAX, _GREY, "max")
    _plot(axis, records, "grpo", names.MISMATCH, _BLUE, "mean")
    if any(value > 0 for value in _series(records, "grpo", names.MISMATCH)[1]):
        axis.set_yscale("log")


def _plot(axis: Axes, records: Records, phase: str, name: str, color: str, label: str = "", width: float = 1.6) -> None:
    steps, values = _series(records, phase, name)
    if values:
        axis.plot(steps, values, color=color, linewidth=width, label=label or None)


def _series(records: Records, phase: str, name: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric within a phase, where it is a number."""
    points = [(r["step"], r[name]) for r in records if r["phase"] == phase and r.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


def _tidy(axis: Axes) -> None:
    axis.title.set(fontsize=10.5, color=_INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(_GREY)
    axis.tick_params(colors=_GREY, labelcolor=_INK, labelsize=8.5)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(color=_GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.set_xlabel(axis.get_xlabel() or "GRPO step", fontsize=8.5, color=_INK)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8.5)
    if not axis.has_data():
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color=_GREY, fontsize=9)

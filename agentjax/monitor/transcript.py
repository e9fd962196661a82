"""Transcripts: a trajectory in, a few lines for people out, coloured by who wrote them."""

import re
from collections.abc import Callable, Sequence

from rich.text import Text

from agentjax.trajectory import Segment, Source, Trajectory

Decode = Callable[[Sequence[int]], str]

_LABELS = {Source.PROMPT: "task", Source.POLICY: "policy", Source.ENVIRONMENT: "tool"}
_STYLES = {Source.PROMPT: "white", Source.POLICY: "bold green", Source.ENVIRONMENT: "cyan"}
_ROLE_LINES = re.compile(r"<\|im_start\|>\s*(?:system|user|assistant|tool)?\s*")
_CONTROL = re.compile(r"<\|[^|<>]*\|>|</?tool_response>")


def transcript(trajectory: Trajectory, decode: Decode, *, width: int, max_lines: int = 8) -> Text:
    """A trajectory, one line per segment, cut to fit; a task shows its last message, not the whole prompt.

    Args:
        trajectory: What to show.
        decode: Ids to text, special tokens by name.
        width: Columns.
        max_lines: Segments shown; of a longer trajectory the middle is left out.

    Returns:
        Lines that begin with who speaks, and a last one with the reward.
    """
    said = [(segment.source, _say(segment, decode)) for segment in trajectory.segments if segment.source in _LABELS]
    shown = [(source, text) for source, text in said if text]
    if len(shown) > max_lines:
        shown = shown[: max_lines // 2] + [(Source.TEMPLATE, "...")] + shown[-(max_lines // 2) :]
    lines = [_line(_LABELS.get(source, ""), text, _STYLES.get(source, "dim"), width) for source, text in shown]
    return Text("\n").join([*lines, _reward_line(trajectory)])


def _say(segment: Segment, decode: Decode) -> str:
    text = decode(segment.ids.tolist())
    if segment.source is Source.PROMPT:  # the last message alone
        text = next((message for message in reversed(_ROLE_LINES.split(text)) if message.strip()), "")
    return _printable(_CONTROL.sub(" ", _ROLE_LINES.sub(" ", text)))


def _printable(text: str) -> str:
    """The text on one line; what could steer a terminal becomes U+FFFD, as the policy and tools may write anything."""
    line = " ".join(text.split())
    return "".join(character if character.isprintable() else "\ufffd" for character in line)


def _line(label: str, text: str, style: str, width: int) -> Text:
    room = max(width - 9, 8)
    cut = text if len(text) <= room else text[: room - 3] + "..."
    return Text.assemble((f"{label:>7}  ", "dim"), (cut, style))


def _reward_line(trajectory: Trajectory) -> Text:
    if trajectory.reward is None:
        return Text.assemble(
            (f"{'fault':>7}  ", "dim"), (_printable(f"{trajectory.stop}: {trajectory.error}"), "yellow")
        )
    style = "bold green" if trajectory.reward > 0 else "bold red"
    return Text.assemble(
        (f"{'reward':>7}  ", "dim"), (f"{trajectory.reward:g}", style), (f"  {trajectory.stop}", "dim")
    )

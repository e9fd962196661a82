"""Made for the monitor's tests: trajectories whose ids spell their texts, and a clock that is moved by hand."""

import numpy as np

from agentjax.trajectory import Segment, Source, StopReason, ToolUse, Trajectory, Turn


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def tick(self, seconds: float) -> None:
        self.seconds += seconds


def spell(text: str) -> np.ndarray:
    """Ids of a text: its code points."""
    return np.array([ord(character) for character in text], np.int32)


def decode(ids) -> str:
    """The inverse of `spell`."""
    return "".join(chr(i) for i in ids)


def segment(source: Source, text: str) -> Segment:
    ids = spell(text)
    if source is not Source.POLICY:
        return Segment(source, ids)
    return Segment(source, ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32))


def turn(*tools: ToolUse) -> Turn:
    return Turn("", None, tools, None, "", "stop", None, 0.0, 0.0)


PROMPT = (
    "<|im_start|>system\nYou may call tools.<|im_end|>\n<|im_start|>user\n12*34?<|im_end|>\n<|im_start|>assistant\n"
)


def guess(reward: float | None = 0.0, *, sample: int = 0, stop: StopReason = StopReason.DONE, **changes) -> Trajectory:
    """An episode that answers at once."""
    segments = (segment(Source.PROMPT, PROMPT), segment(Source.POLICY, "400<|im_end|>"))
    return Trajectory("task", "group", sample, sample, segments, (turn(),), reward, stop, **changes)


def calculate(reward: float = 1.0, *, sample: int = 0, ok: bool = True) -> Trajectory:
    """An episode that calls the tool first."""
    segments = (
        segment(Source.PROMPT, PROMPT),
        segment(Source.POLICY, '<tool_call>\n{"name": "python"}\n</tool_call><|im_end|>'),
        segment(Source.TEMPLATE, "\n<|im_start|>user\n<tool_response>\n"),
        segment(Source.ENVIRONMENT, "408\n"),
        segment(Source.TEMPLATE, "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        segment(Source.POLICY, "408<|im_end|>"),
    )
    turns = (turn(ToolUse("python", "{}", ok, "408", 0.01)), turn())
    return Trajectory("task", "group", sample, sample, segments, turns, reward, StopReason.DONE)

"""What a person reads: screens, lines and transcripts, rendered to a recorded console."""

import dataclasses
import io
import math

import pytest
from rich.console import Console

from agentjax.monitor.board import Board
from agentjax.monitor.draw import clock, log_line, render, sparkline
from agentjax.monitor.live import LiveView, LogView, make_view
from agentjax.monitor.transcript import transcript
from agentjax.trajectory import Source, StopReason
from tests.monitor.made import Clock, calculate, decode, guess, segment

METRICS = {
    "policy/loss": 0.0123,
    "reward/mean": 0.625,
    "reward/with_tool": 0.95,
    "reward/without_tool": 0.0,
    "rollout/tool_use": 0.66,
    "rollout/tool_calls_mean": 0.7,
    "perf/tokens_per_s": 2840.4,
    "perf/slot_occupancy": 0.87,
    "policy/mismatch": 2e-6,
    "time/decode_s": 3.0,
    "time/train_s": 1.0,
}
START = Board(name="demo", totals={"sft": 4, "grpo": 10}, players={"solver": 0.35, "guesser": 0.65})
GRPO = START.after_step("grpo", 2, METRICS, calculate(), seconds=4.0)


def drawn(renderable, *, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, record=True, force_terminal=True)
    console.print(renderable)
    return console.export_text()


def test_a_screen_shows_progress_numbers_story_and_sample():
    text = drawn(render(GRPO, decode, width=100))
    for part in ("GRPO 2/10", "0:32 left", "0.625", "2,840", "87%", "2.0e-06", "decode 75%", "train 25%", "12*34?"):
        assert part in text
    assert "66% of episodes call a tool and earn 0.95; the rest guess and earn 0.00." in text


def test_a_screen_before_the_first_step_says_so():
    assert "starting" in drawn(render(START, decode, width=80))


def test_the_cold_start_tells_whom_it_imitates():
    board = START.after_step("sft", 1, {"policy/loss": 2.5}, None, seconds=0.5)
    text = drawn(render(board, decode, width=100))
    assert "solver 35%, guesser 65%" in text and "2.5000" in text and "reward" not in text


@pytest.mark.parametrize("width", [34, 60, 200])
def test_no_line_is_wider_than_the_terminal(width):
    lines = drawn(render(GRPO, decode, width=width), width=width).splitlines()
    assert max(map(len, lines)) <= width


def test_a_step_is_one_line():
    line = log_line(GRPO)
    assert line.startswith("GRPO 2/10  reward 0.625") and line.endswith("4.0 s  0:32 left") and "\n" not in line


def test_a_missing_metric_is_left_out_of_the_line_and_a_dash_on_the_screen():
    board = START.after_step("grpo", 1, {"reward/mean": 0.5}, None, seconds=1.0)
    assert "tokens/s" not in log_line(board)
    assert "–" in drawn(render(board, decode, width=100))


def test_a_loss_that_is_not_finite_is_drawn():
    board = START.after_step("sft", 1, {"policy/loss": math.nan}, None, seconds=1.0)
    board = board.after_step("sft", 2, {"policy/loss": math.inf}, None, seconds=1.0)
    assert "inf" in drawn(render(board, decode, width=100))


def test_a_transcript_has_a_line_for_each_speaker_without_scaffolding():
    lines = transcript(calculate(), decode, width=80).plain.splitlines()
    assert [line.split()[0] for line in lines] == ["task", "policy", "tool", "policy", "reward"]
    assert lines[0].endswith("task  12*34?") and lines[2].endswith("tool  408") and lines[-1].endswith("1  done")
    assert '<tool_call> {"name": "python"} </tool_call>' in lines[1]
    assert "<|" not in "".join(lines)


def test_speakers_have_colours_of_their_own():
    styles = {span.style for span in transcript(calculate(), decode, width=80).spans}
    assert {"white", "bold green", "cyan"} <= styles


def test_a_transcript_of_a_fault_says_what_failed():
    fault = guess(None, stop=StopReason.SANDBOX_LOST, error="session died")
    assert transcript(fault, decode, width=80).plain.endswith("sandbox_lost: session died")


def test_nothing_a_policy_writes_steers_the_terminal():
    row = calculate()
    segments = (*row.segments[:-1], segment(Source.POLICY, "\x1b[2J\x07408"))
    lines = transcript(dataclasses.replace(row, segments=segments), decode, width=80).plain.splitlines()
    assert lines[3].endswith("\ufffd[2J\ufffd408")


def test_an_environment_without_tools_tells_no_story_of_tools():
    metrics = {"reward/mean": 0.3, "rollout/tool_use": 0.0, "reward/without_tool": 0.3}
    assert START.after_step("grpo", 1, metrics, None, seconds=1.0).story == ""


def test_long_lines_are_cut_to_the_width():
    lines = transcript(calculate(), decode, width=30).plain.splitlines()
    assert len(lines[1]) == 30 and lines[1].endswith("...")


def test_a_spark_line_spans_its_bounds():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 1.0], low=0.0, high=1.0) == "▁█"
    assert sparkline([5.0, 5.0]) == "▁▁" and sparkline([]) == "" and sparkline([math.nan, 1.0]) == "▁"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (754, "12:34"), (3661, "1:01:01"), (-1, "0:00")]
)
def test_durations_read_as_a_clock(seconds, text):
    assert clock(seconds) == text


def test_a_log_writes_fast_steps_once_a_second_and_the_last_always():
    now, console = Clock(), Console(file=io.StringIO(), width=100, record=True)
    view = LogView(console, decode, now=now)
    for step in range(1, 5):
        now.tick(0.4)
        view.show(START.after_step("sft", step, {"policy/loss": 1.0}, None, seconds=0.4))
    lines = console.export_text().splitlines()
    assert [line.split()[1] for line in lines] == ["1/4", "4/4"]


def test_a_live_view_leaves_the_last_board_on_the_screen():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    view = LiveView(console, decode)
    view.show(START)
    view.show(GRPO)
    view.close()
    assert "GRPO 2/10" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_the_screen_is_for_terminals_unless_told_otherwise():
    pipe = Console(file=io.StringIO())
    assert isinstance(make_view("auto", pipe, decode), LogView)
    view = make_view("auto", Console(file=io.StringIO(), force_terminal=True), decode)
    view.close()
    assert isinstance(view, LiveView)
    assert isinstance(make_view("off", Console(file=io.StringIO(), force_terminal=True), decode), LogView)

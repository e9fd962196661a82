"""The monitor: a run leaves its files, a resumed one goes on with them, and the summary tells what improved."""

import io
import json

import pytest
from rich.console import Console

from agentjax.config import from_json, load
from agentjax.monitor import Monitor, episode_metrics
from agentjax.monitor.run_folder import read_metrics
from tests.monitor.made import Clock, calculate, decode, guess

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def start(tmp_path):
    """Opens a monitor of a short run in a folder of the test."""
    config = load("quickstart", [f"run_dir={tmp_path / 'run'}", "sft.steps=2", "train.steps=4", "monitor.live=off"])

    def open_monitor() -> Monitor:
        clock, console = Clock(), Console(file=io.StringIO(), width=100, record=True)
        monitor = Monitor(config, decode=decode, console=console, now=clock)
        monitor.test_clock, monitor.test_console = clock, console  # pyright: ignore[reportAttributeAccessIssue]
        return monitor

    return open_monitor


def play(monitor, phase: str, steps, *, success=None):
    for step in steps:
        monitor.test_clock.tick(2.0)
        if phase == "sft":
            monitor.step("sft", step, {"policy/loss": 1.0 / step})
            continue
        rows = [guess(), calculate(sample=1)]
        monitor.step("grpo", step, episode_metrics(rows) | {"perf/tokens_per_s": 100.0 * step}, sample=rows[-1])
    if success is not None:
        monitor.evaluation(steps[-1], {"eval/success": success})


def test_a_run_leaves_every_file(start):
    with start() as monitor:
        play(monitor, "sft", [1, 2])
        monitor.evaluation(0, {"eval/success": 0.1})
        play(monitor, "grpo", [1, 2, 3, 4], success=0.9)
        monitor.summary(compiles_after_warmup=0)
    folder = monitor.folder
    assert from_json(folder.config.read_text()).train.steps == 4
    assert [(r["phase"], r["step"]) for r in read_metrics(folder.metrics)] == [
        *[("sft", 1), ("sft", 2), ("eval", 0)],
        *[("grpo", step) for step in range(1, 5)],
        ("eval", 4),
    ]
    assert {path.name for path in folder.tensorboard.iterdir()} == {"sft", "grpo", "eval"}
    assert folder.curves.read_bytes().startswith(PNG) and folder.curves.stat().st_size > 10_000
    assert json.loads(folder.summary.read_text()) == {
        "success_before": 0.1,
        "success_after": 0.9,
        "train_seconds": 12.0,
        "steps": 4,
        "sft_steps": 2,
        "tool_calls": 4,
        "episodes": 8,
        "tokens_per_s": 250.0,
        "compiles_after_warmup": 0,
        "ended": "all steps done",
    }


def test_a_summary_says_what_improved_and_where_the_files_are(start):
    with start() as monitor:
        monitor.evaluation(0, {"eval/success": 0.1})
        play(monitor, "grpo", [1], success=0.95)
        monitor.summary(compiles_after_warmup=0, ended="held-out success reached 0.95")
    text = monitor.test_console.export_text()
    for part in ("10.0% -> 95.0%", "reached 0.95", "1 tool calls", "curves.png", "0 after the warm-up"):
        assert part in text


def test_a_run_that_goes_on_has_the_records_of_one_that_never_stopped(start):
    with start() as straight:
        play(straight, "grpo", [1, 2, 3, 4], success=0.9)
    want, seconds = straight.folder.metrics.read_bytes(), straight.seconds

    with start() as killed:
        play(killed, "grpo", [1, 2])
        state = json.loads(json.dumps(killed.state()))
        play(killed, "grpo", [3])
    with start() as resumed:
        resumed.restore(state)
        play(resumed, "grpo", [3, 4], success=0.9)
    assert resumed.folder.metrics.read_bytes() == want
    assert resumed.seconds == seconds
    assert resumed.state() == straight.state()


def test_a_run_that_does_not_resume_begins_its_files_anew(start):
    with start() as first:
        play(first, "sft", [1, 2])
        first.folder.trajectories_of("grpo", 1).write_text("old")
    with start() as second:
        play(second, "sft", [1])
    assert len(read_metrics(second.folder.metrics)) == 1
    assert not list(second.folder.trajectories.iterdir())


def test_opening_a_folder_changes_nothing_that_was_measured(start):
    with start() as first:
        play(first, "sft", [1, 2])
    before = first.folder.metrics.read_bytes()
    start().close()
    assert first.folder.metrics.read_bytes() == before


def test_a_log_tells_the_story(start):
    with start() as monitor:
        monitor.status("playing demonstrations")
        play(monitor, "grpo", [1], success=0.5)
    text = monitor.test_console.export_text()
    for part in (
        "playing demonstrations",
        "GRPO 1/4",
        "held-out success 0.50",
        "50% of episodes call a tool",
        "12*34?",
    ):
        assert part in text


def test_trajectories_are_kept_at_the_first_step_and_then_at_an_interval(start):
    with start() as monitor:
        assert [step for step in range(1, 31) if monitor.keeps_trajectories(step)] == [1, 10, 20, 30]


def test_curves_of_an_empty_run_are_drawn(start):
    with start() as monitor:
        monitor.draw_curves()
    assert monitor.folder.curves.read_bytes().startswith(PNG)

"""The run folder: metrics are whole lines, and are cut back to what a checkpoint had seen."""

import json
import math

from agentjax.monitor.run_folder import MetricsFile, RunFolder, read_metrics


def written(path, steps: int) -> MetricsFile:
    metrics = MetricsFile(path)
    for step in range(1, steps + 1):
        metrics.append({"phase": "sft", "step": step, "policy/loss": 1 / step})
    return metrics


def test_what_is_appended_is_read_back(tmp_path):
    metrics = written(tmp_path / "metrics.jsonl", 3)
    assert metrics.records == 3
    assert [record["policy/loss"] for record in metrics.read()] == [1, 1 / 2, 1 / 3]


def test_a_resumed_file_continues_as_if_it_had_never_stopped(tmp_path):
    straight, resumed = tmp_path / "straight.jsonl", tmp_path / "resumed.jsonl"
    written(straight, 5)
    written(resumed, 4)
    metrics = MetricsFile(resumed)
    metrics.keep(2)
    for step in (3, 4, 5):
        metrics.append({"phase": "sft", "step": step, "policy/loss": 1 / step})
    assert resumed.read_bytes() == straight.read_bytes()
    assert metrics.records == 5


def test_a_torn_last_line_is_skipped_and_cut_off(tmp_path):
    path = tmp_path / "metrics.jsonl"
    written(path, 2)
    with path.open("a") as file:
        file.write('{"phase": "sft", "st')
    assert len(read_metrics(path)) == 2
    metrics = MetricsFile(path)
    metrics.keep(2)
    assert path.read_text().endswith("\n") and len(path.read_text().splitlines()) == 2


def test_a_file_that_was_deleted_begins_again(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.keep(7)
    assert metrics.records == 0 and metrics.read() == []


def test_numbers_that_are_not_finite_stay_json(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append({"phase": "grpo", "step": 1, "policy/loss": math.nan, "optim/grad_norm": math.inf})
    line = json.loads(metrics.path.read_text(), parse_constant=lambda name: 1 / 0)
    assert line == {"phase": "grpo", "step": 1, "policy/loss": None, "optim/grad_norm": None}


def test_clearing_a_folder_keeps_config_and_checkpoints(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create("{}\n")
    (folder.checkpoints / "3").mkdir(parents=True)
    folder.trajectories_of("grpo", 3).write_text("old")
    written(folder.metrics, 2)
    folder.clear()
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoints", "config.json", "trajectories"]
    assert not list(folder.trajectories.iterdir()) and (folder.checkpoints / "3").is_dir()

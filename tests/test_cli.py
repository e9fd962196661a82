"""The command line: what is passed on, what is printed, and the exit status."""

import json
import subprocess
import sys
import types

import pytest

from agentjax import cli
from agentjax.config import load, to_json


@pytest.fixture
def command(monkeypatch):
    """Replaces the module behind a command by one whose main records its arguments and returns the given result."""

    def replace(module: str, result=None):
        calls = []

        def main(*args, **kwargs):
            calls.append((args, kwargs))
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(main=main))
        return calls

    return replace


@pytest.mark.parametrize("name", ["train", "sft"])
def test_a_loop_gets_the_config_with_overrides_in_both_spellings(command, capsys, name):
    calls = command(f"agentjax.{name}")
    assert cli.main([name, "--config=quickstart", "--config.seed=7", "--config.algo.group_size", "8"]) == 0
    ((config,), _) = calls[0]
    assert (config.seed, config.algo.group_size) == (7, 8)
    assert "16 prompts x 8 samples" in capsys.readouterr().out


def test_the_exit_status_of_a_loop_is_passed_on(command):
    command("agentjax.train", result=1)
    assert cli.main(["train", "--config=quickstart"]) == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "--config=quikstart"], "Did you mean 'quickstart'?"),
        (["train", "--config=quickstart", "--config.rollout.slot=3"], "Did you mean 'rollout.slots'?"),
        (["train", "--config=quickstart", "--config.rollout.slots"], "An override looks like"),
        (["train", "--config=quickstart", "--config.mesh.data=1024", "--config.learner.rows=1024"], "does not fit"),
        (["eval"], "agentjax eval needs --run=DIR"),
        (["eval", "--run=nowhere"], "nowhere is no run folder"),
        (["bench", "rolout"], "There is no benchmark 'rolout'. Did you mean 'rollout'?"),
    ],
)
def test_a_mistake_is_one_clear_message_and_status_2(capsys, argv, message):
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("agentjax: ") and "Traceback" not in error


@pytest.mark.parametrize(
    "argv", [[], ["trian", "--config=x"], ["train"], ["train", "--config=quickstart", "--slots=3"]]
)
def test_arguments_that_do_not_parse_end_with_status_2(capsys, argv):
    with pytest.raises(SystemExit) as exited:
        cli.main(argv)
    assert exited.value.code == 2
    assert "usage: agentjax" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(command):
    command("agentjax.train", result=ValueError("raised outside of the package"))
    with pytest.raises(ValueError):
        cli.main(["train", "--config=quickstart"])


def test_a_missing_sandbox_is_a_message(command, capsys):
    from agentjax.envs.sandbox import SandboxUnavailable

    command("agentjax.train", result=SandboxUnavailable("install bubblewrap"))
    assert cli.main(["train", "--config=quickstart"]) == 2
    assert capsys.readouterr().err == "agentjax: install bubblewrap\n"


def test_eval_takes_the_config_of_the_run_and_prints_nothing_but_json(command, capsys, tmp_path):
    calls = command("agentjax.evaluate", result={"eval/success": 0.5})
    (tmp_path / "config.json").write_text(to_json(load("quickstart", ["seed=3"])))
    assert cli.main(["eval", f"--run={tmp_path}", "--step=10", "--json=-", "--config.eval.tasks=9"]) == 0
    ((config,), options) = calls[0]
    assert (config.seed, config.eval.tasks, config.folder, options) == (3, 9, tmp_path, {"step": 10})
    assert json.loads(capsys.readouterr().out) == {"eval/success": 0.5}


def test_eval_writes_a_json_file(command, tmp_path):
    command("agentjax.evaluate", result={"eval/success": 0.5})
    assert cli.main(["eval", "--config=quickstart", f"--json={tmp_path / 'out.json'}"]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == {"eval/success": 0.5}


def test_bench_passes_its_options_on(command, capsys):
    calls = command("agentjax.bench.rollout", result={"tokens_per_s": 12345.678})
    assert cli.main(["bench", "rollout", "--preset", "agentic", "--latency=0"]) == 0
    assert calls == [((["--preset", "agentic", "--latency=0"],), {})]
    assert capsys.readouterr().out.split() == ["tokens_per_s", "1.235e+04"]


def test_help_after_a_benchmark_is_that_of_the_benchmark(command):
    calls = command("agentjax.bench.rollout", result={})
    assert cli.main(["bench", "rollout", "--help"]) == 0
    assert calls == [((["--help"],), {})]


def test_help_names_the_commands_and_shows_how_to_type_them(capsys):
    with pytest.raises(SystemExit) as exited:
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert exited.value.code == 0
    for part in ("train", "sft", "eval", "bench", "agentjax train --config=quickstart", "--config.algo.group_size=16"):
        assert part in text


def test_the_package_runs_as_a_module():
    shown = subprocess.run([sys.executable, "-m", "agentjax", "train", "--help"], capture_output=True, text=True)
    assert shown.returncode == 0 and "--config=NAME|FILE" in shown.stdout

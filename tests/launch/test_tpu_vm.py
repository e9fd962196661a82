"""The TPU VM script: what it prints in a dry run is what it gives gcloud otherwise; a mistake calls nothing."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "launch" / "tpu_vm.sh"
CREATE = "create --name=a --zone=b --type=v6e-1 --version=v2-alpha-tpuv6e"


@pytest.fixture
def launch(tmp_path):
    """Runs the script with stand-ins for gcloud and git that write down what they are given."""
    log = tmp_path / "log"
    for program in ("gcloud", "git"):
        stand_in = tmp_path / program
        stand_in.write_text(f'#!/bin/bash\nprintf "%q " {program} "$@" >>{log}\necho >>{log}\n')
        stand_in.chmod(0o755)
    (tmp_path / "agentjax-a.tar.gz").touch()
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}

    def run(arguments: str) -> tuple[int, str, str, str]:
        log.write_text("")
        done = subprocess.run(
            ["bash", str(SCRIPT), *shlex.split(arguments)], env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr, log.read_text()

    return run


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (f"{CREATE} --spot", "create a --zone=b --accelerator-type=v6e-1 --version=v2-alpha-tpuv6e --spot"),
        ("delete --name=a --zone=b --project=p", "delete a --zone=b --project=p --quiet"),
        (
            "run --name=a --zone=b -- train --config=quickstart",
            "ssh a --zone=b --command='cd agentjax && .venv/bin/agentjax train --config=quickstart '",
        ),
    ],
)
def test_a_command_becomes_one_of_gcloud(launch, arguments, want):
    status, _, _, called = launch(arguments)
    assert status == 0
    assert shlex.split(called) == shlex.split(f"gcloud compute tpus tpu-vm {want}")


@pytest.mark.parametrize("arguments", [CREATE, "setup --name=a --zone=b", "delete --name=a --zone=b"])
def test_a_dry_run_prints_the_commands_and_runs_none(launch, arguments):
    status, printed, _, called = launch(f"{arguments} --dry-run")
    assert status == 0 and called == ""
    really_called = launch(arguments)[3]
    assert [line for line in printed.splitlines() if not line.startswith("rm ")] == really_called.splitlines()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("", "create, setup, run or delete"),
        ("creat --name=a --zone=b", "creat"),
        ("create --zone=b", "--name"),
        ("delete --name=a", "--zone"),
        ("create --name=a --zone=b --type=v6e-1", "--version"),
        ("create --name=a --zone=b --version=x", "--type"),
        ("run --name=a --zone=b", "--"),
        ("delete --name=a --zone=b --force", "--force"),
    ],
)
def test_a_mistake_is_named_and_calls_nothing(launch, arguments, names):
    status, _, said, called = launch(arguments)
    assert status == 2 and names in said and called == ""

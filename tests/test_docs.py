"""Docs: their Python runs, their commands parse, their links lead somewhere, and their tables list what there is."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from agentjax.cli import make_parser, split_overrides
from agentjax.config import Config, load
from agentjax.config.overrides import apply_overrides
from agentjax.envs.contract import EnvContract
from agentjax.monitor.names import TIME_SPLIT
from agentjax.trajectory import StopReason
from docs import reference

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
METRIC = r"(?:reward|rollout|stop|policy|learn|optim|time|perf|eval)/[a-z_0-9]+"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@every_page
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict = {"__name__": f"page_{page.stem}"}
    made = set()
    for source in blocks(page, "python"):
        if name := re.match(r"# (\w+)\.py\n", source):
            (tmp_path / f"{name[1]}.py").write_text(source)
            made.add(name[1])
        importlib.invalidate_caches()
        exec(compile(source, str(page), "exec"), namespace)
    for name, value in namespace.items():
        if isinstance(value, type) and issubclass(value, EnvContract) and value is not EnvContract:
            _run_contract(name, value)
    for name in made:
        importlib.import_module(name)
        del sys.modules[name]


def _run_contract(name: str, contract: type[EnvContract]) -> None:
    for test in [key for key in dir(contract) if key.startswith("test_")]:
        getattr(contract(), test)()


def test_the_config_of_the_configuration_page_is_one(tmp_path):
    file = tmp_path / "my_experiment.py"
    file.write_text(blocks(ROOT / "docs" / "configuration.md", "python")[0])
    assert load(file).env.args == {"slippery": True}


@every_page
def test_commands_are_understood(page):
    for line in "\n".join(blocks(page, "bash")).splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        if Path(program).name != "agentjax":
            continue
        others, overrides = split_overrides(arguments)
        known, unknown = make_parser().parse_known_args(others)
        assert not unknown or others[0] == "bench", line
        apply_overrides(Config, {}, overrides)
        if getattr(known, "config", None) and not known.config.endswith(".py"):
            load(known.config, overrides)


@every_page
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_make_target_that_is_named_exists():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        assert set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks(page, "bash")), re.MULTILINE)) <= set(targets)


def test_the_tables_of_keys_are_those_of_the_dataclasses():
    written = reference.PAGE.read_text().partition(reference.START)[2].strip()
    assert written == reference.tables().strip(), "run: python docs/reference.py"


def test_every_metric_is_explained_and_exists():
    explained = set(re.findall(rf"`({METRIC})`", (ROOT / "docs" / "metrics.md").read_text()))
    assert explained - {"eval/reward_mean"} == _metrics_in_source()  # that one is an example of eval/<name>


def _metrics_in_source() -> set[str]:
    """Names that stand in the source, and those it makes of parts."""
    files = [file for folder in ("agentjax", "envs") for file in (ROOT / folder).rglob("*.py")]
    named = {name for file in files for name in re.findall(rf"\"({METRIC})\"", file.read_text())}
    largest = {f"policy/{name}_max" for name in ("ratio", "mismatch", "age")}
    return named | largest | {f"time/{part}_s" for part in TIME_SPLIT} | {f"stop/{reason}" for reason in StopReason}

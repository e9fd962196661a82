"""Command line: arguments in, an exit status out: 0 done or stopped on request, 1 failed, 2 a mistake in the input."""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_DESCRIPTION = "Agentic RL for language models, native to JAX: one SPMD program samples, acts and learns."

_EXAMPLES = """\
examples:
  agentjax train --config=quickstart
      SFT on demonstrations, then GRPO. Stop it with Ctrl-C; the same command goes on from its checkpoint.
  agentjax train --config=my_experiment.py --config.algo.group_size=16 --config.run_dir=runs/g16
      a config file of yours, and two of its keys overridden
  agentjax eval --run=runs/quickstart --config.eval.samples=8 --config.eval.k=4 --json=-
      held-out success of the newest checkpoint, greedy and pass@4, as JSON on standard output
  agentjax bench rollout --preset agentic --json=bench.json
      tokens per second of the sampling engine

environment variables:
  JAX_PLATFORMS=cpu                              where to run; by default on what JAX finds
  JAX_COMPILATION_CACHE_DIR=~/.cache/agentjax/xla    keep compiled programs from one run to the next
  AGENTJAX_TRACEBACK=1                           show where an error was raised
"""

_KEYS = """\
keys:
  --config.a.b=value overrides a key of the config, as often as you like. A value is a number, text, true, false, none,
  or a tuple such as 1,2. All keys stand in agentjax/config/experiment.py, each with its meaning and unit; a run folder
  has them with its values, in config.json. A mistyped key is answered with the nearest one.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments without the program's name; those of this process if None.

    Returns:
        The exit status.
    """
    argv, overrides = split_overrides(sys.argv[1:] if argv is None else argv)
    if os.getcwd() not in sys.path:  # env.name="my_module:MyEnv" may name a module in the working directory
        sys.path.append(os.getcwd())
    parser = make_parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command is not _bench:
        parser.error(f"unknown arguments: {' '.join(rest)}; keys of the config are set by --config.key=value")
    arguments.rest = rest
    try:
        return arguments.command(arguments, overrides) or 0
    except KeyboardInterrupt:  # before a loop took it over
        return 130
    except Exception as error:
        if os.environ.get("AGENTJAX_TRACEBACK") or not _is_of_the_user(error):
            raise
        print(f"agentjax: {error}", file=sys.stderr)
        return 1 if type(error).__name__ == "Diverged" else 2


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take the overrides, "--config.a.b=c" or "--config.a.b c", out of the arguments.

    Returns:
        The other arguments, and the overrides as "a.b=c".
    """
    others, overrides = [], []
    rest = iter(argv)
    for argument in rest:
        if not argument.startswith("--config."):
            others.append(argument)
            continue
        bare = argument.removeprefix("--config.")
        value = next(rest, None) if "=" not in bare else None
        overrides.append(bare if value is None else f"{bare}={value}")
    return others, overrides


def make_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    shape: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser("agentjax", description=_DESCRIPTION, epilog=_EXAMPLES, **shape)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    text = "SFT on demonstrations, then GRPO, with evaluations and checkpoints"
    train = commands.add_parser("train", help=text, description=text, usage=_USAGE["train"], epilog=_KEYS, **shape)
    train.set_defaults(command=_train)
    _add_config(train, required=True)

    text = "the cold start alone: SFT on demonstrations of scripted players"
    sft = commands.add_parser("sft", help=text, description=text, usage=_USAGE["sft"], epilog=_KEYS, **shape)
    sft.set_defaults(command=_sft)
    _add_config(sft, required=True)

    text = "evaluate the checkpoint of a run on held-out tasks"
    evaluate = commands.add_parser("eval", help=text, description=text, usage=_USAGE["eval"], epilog=_KEYS, **shape)
    evaluate.set_defaults(command=_eval)
    _add_config(evaluate, required=False)
    evaluate.add_argument("--run", metavar="DIR", help="run folder; its own config is used, with overrides on top")
    evaluate.add_argument("--step", type=int, help="GRPO step of the checkpoint; the newest if not given")
    _add_json(evaluate)

    text = "measure speed; `agentjax bench rollout --help` shows the options of a benchmark"
    bench = commands.add_parser(
        "bench", help=text, description=text, usage=_USAGE["bench"], add_help=False, **shape
    )  # --help belongs to the benchmark
    bench.set_defaults(command=_bench)
    bench.add_argument("name", help="what to measure, such as rollout")
    _add_json(bench)
    return parser


_USAGE = {
    "train": "agentjax train --config=NAME|FILE [--config.key=value ...]",
    "sft": "agentjax sft --config=NAME|FILE [--config.key=value ...]",
    "eval": "agentjax eval --run=DIR [--step=N] [--json=FILE] [--config.key=value ...]",
    "bench": "agentjax bench NAME [--json=FILE] [options of the benchmark]",
}


def _add_config(parser: argparse.ArgumentParser, *, required: bool) -> None:
    text = "a config file, or the name of a bundled one: quickstart, frozen_lake"
    parser.add_argument("--config", required=required, metavar="NAME|FILE", help=text)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - for standard output")


def _train(arguments: argparse.Namespace, overrides: list[str]) -> int | None:
    config = _load(arguments.config, overrides)
    return importlib.import_module("agentjax.train").main(config)


def _sft(arguments: argparse.Namespace, overrides: list[str]) -> int | None:
    config = _load(arguments.config, overrides)
    return importlib.import_module("agentjax.sft").main(config)


def _load(path: str, overrides: list[str]):
    """The config, checked against the devices, and announced."""
    from agentjax.config import describe, load

    config = load(path, overrides)
    print(describe(config), flush=True)
    _check_devices(config)
    return config


def _check_devices(config) -> None:
    import jax

    from agentjax.config import validate

    validate(config, device_count=jax.device_count())


def _eval(arguments: argparse.Namespace, overrides: list[str]) -> None:
    config = _config_of_run(arguments.run, arguments.config, overrides)
    _check_devices(config)
    result = importlib.import_module("agentjax.evaluate").main(config, step=arguments.step)
    _report(result, arguments.json)


def _config_of_run(run: str | None, path: str | None, overrides: list[str]):
    """The config a run was made with, or that of a file, whose run is meant."""
    from agentjax.config import from_json, load
    from agentjax.monitor import RunFolder

    if run is not None:
        saved = RunFolder(run).config
        if not saved.is_file():
            raise ValueError(f"{run} is no run folder: there is no {saved}.")
        return from_json(saved.read_text(), [*overrides, f"run_dir={run}"])
    if path is not None:
        return load(path, overrides)
    raise ValueError("agentjax eval needs --run=DIR, the folder of a run, or --config, which names one.")


def _bench(arguments: argparse.Namespace, overrides: list[str]) -> None:
    import agentjax.bench
    from agentjax.config.convert import did_you_mean

    known = sorted(file.stem for file in Path(agentjax.bench.__path__[0]).glob("[a-z]*.py"))
    if arguments.name not in known:
        raise ValueError(
            f"There is no benchmark {arguments.name!r}.{did_you_mean(arguments.name, known)} "
            f"There are: {', '.join(known)}."
        )
    options = arguments.rest + [f"--config.{override}" for override in overrides]
    _report(importlib.import_module(f"agentjax.bench.{arguments.name}").main(options), arguments.json)


def _report(result: Mapping[str, Any], target: str | None) -> None:
    """Write a result as JSON to a file or, for "-", to standard output; without a target, as lines for people."""
    text = json.dumps(result, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    elif target is not None:
        Path(target).write_text(text)
    else:
        for name, value in result.items():
            print(f"{name:28} {value:.4g}" if isinstance(value, float) else f"{name:28} {value}")


def _is_of_the_user(error: Exception) -> bool:
    """Whether the error was raised by this package to say what went wrong for the user, not by a bug below."""
    if type(error).__name__ in ("SandboxUnavailable", "Diverged"):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return isinstance(error, ValueError | TypeError | ImportError) and raised_in.startswith("agentjax.")

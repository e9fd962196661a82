"""Config files: a Python file with `get_config()` and overrides in, a checked `Config` out; and a config as JSON."""

import dataclasses
import importlib.util
import json
import re
import traceback
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

import agentjax.configs
from agentjax.config.checks import validate
from agentjax.config.convert import build, did_you_mean, field_types, known_keys, plain, unknown_key
from agentjax.config.experiment import Config
from agentjax.config.overrides import apply_overrides


def default_config() -> Any:  # a ConfigDict, whose keys no type checker knows
    """Every key with its default, as a type-safe `ConfigDict` for a config file to fill.

    A key that may be None is a placeholder: None until set. `env.args` and `env.players` take any keys.
    """
    config = _config_dict(Config())
    config.name = config.run_dir = ""  # `load` names the run after the file
    return config


def _config_dict(config: Any) -> ConfigDict:
    values = {}
    for name, hint in field_types(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            value = _config_dict(value)
        values[name] = placeholder(_without_none(hint)) if value is None else value
    return ConfigDict(values)


def _without_none(hint: Any) -> type:
    kept = [a for a in typing.get_args(hint) if a is not type(None)]
    return typing.get_origin(kept[0]) or kept[0]


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Open a config file.

    Args:
        path: A Python file with `get_config()`, or the name of a config that comes with the package ("quickstart").
        overrides: Texts like "--config.rollout.slots=128", the later ones win.

    Returns:
        The config, checked as far as that needs no devices.

    Raises:
        ValueError: If there is no such file, a key is unknown, or a value is impossible; says which and what is right.
        TypeError: If a value has the wrong type.
    """
    file = _find(path)
    values = apply_overrides(Config, _run(file).to_dict(), overrides)
    values["name"] = values.get("name") or file.stem
    config = build(Config, values)
    validate(config)
    return config


def _find(path: str | Path) -> Path:
    bundled = {file.stem: file for file in Path(agentjax.configs.__file__).parent.glob("*.py") if file.stem[0] != "_"}
    if str(path) in bundled:
        return bundled[str(path)]
    if Path(path).is_file():
        return Path(path)
    names = ", ".join(sorted(bundled))
    raise ValueError(
        f"There is no config file {str(path)!r}.{did_you_mean(Path(path).stem, bundled)} Bundled: {names}."
    )


def _run(file: Path) -> ConfigDict:
    """Run the file, and say of a mistake in it where it is."""
    spec = importlib.util.spec_from_file_location(f"agentjax_config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise ValueError(f"{file} has no get_config().")
        config = module.get_config()
    except (AttributeError, KeyError, TypeError, SyntaxError) as error:  # a mistyped key or value, most of the time
        raise ValueError(_explain(file, error)) from error
    if not isinstance(config, ConfigDict):
        raise ValueError(f"{file}: get_config() must return a ConfigDict, got {type(config).__name__}.")
    return config


def _explain(file: Path, error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    place = f"{file}:{frames[-1].lineno}: {frames[-1].line}\n" if frames else f"{file}: "
    raised_by = traceback.extract_tb(error.__traceback__)[-1].filename
    if isinstance(error, AttributeError | KeyError) and "ml_collections" in raised_by:
        quoted = re.search(r"['\"](\w+)\\?['\"]", str(error))  # the first word in quotes is the key
        return place + (unknown_key(quoted[1], known_keys(Config)) if quoted else str(error))
    return place + str(error)


def to_json(config: Config) -> str:
    """The config as JSON text, every key in it."""
    return json.dumps(plain(config), indent=2) + "\n"


def from_json(text: str, overrides: Sequence[str] = ()) -> Config:
    """The inverse of `to_json`, with overrides on top; checked like a file.

    Raises:
        ValueError: If the text is not JSON, a key is unknown, or a value is impossible.
        TypeError: If a value has the wrong type.
    """
    config = build(Config, apply_overrides(Config, json.loads(text), overrides))
    validate(config)
    return config

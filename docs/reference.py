"""Reference: the dataclasses of a config in, the tables of keys in docs/configuration.md out.

python docs/reference.py            # rewrites them, after a key was added or changed
"""

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

from agentjax.config import Config
from agentjax.config.convert import field_types

PAGE = Path(__file__).with_name("configuration.md")
START = "<!-- written by docs/reference.py from here on -->\n"


def tables() -> str:
    """Every section with its keys, defaults and meanings, in the order of the config."""
    sections = {"": Config} | {name: hint for name, hint in field_types(Config).items() if _is_section(hint)}
    return "\n".join(_section(name, section) for name, section in sections.items())


def _is_section(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint)


def _section(name: str, section: Any) -> str:
    title = f"### `{name}`\n\n{section.__doc__.splitlines()[0]}" if name else "### Top level"
    meanings, hints = _meanings(section), field_types(section)
    rows = [
        f"| `{f'{name}.' if name else ''}{field.name}` | {_default(field)} | {meanings[field.name]} |"
        for field in dataclasses.fields(section)
        if not _is_section(hints[field.name])
    ]
    nested = [
        f"\n`{name}.{key}` has the keys of `{key}`.\n" for key, hint in hints.items() if name and _is_section(hint)
    ]
    return "\n".join([title, "", "| key | default | meaning |", "|---|---|---|", *rows, *nested, ""])


def _meanings(section: Any) -> dict[str, str]:
    """What stands beside a field as a comment, or under "Attributes" in the docstring."""
    beside = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(section), re.MULTILINE))
    described = dict(re.findall(r"^    (\w+): (.*)\.$", inspect.getdoc(section) or "", re.MULTILINE))
    return {name: text.replace("|", "\\|").replace("<", "&lt;") for name, text in (described | beside).items()}


def _default(field: Any) -> str:
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    return f"`{json.dumps(value)}`".replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(START)[0] + START + "\n" + tables())

"""Names in configs: a table and a name in, the function it names out."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def lookup(table: Mapping[str, T], name: str, *, field: str) -> T:
    """The entry called `name`.

    Args:
        table: Everything that can be chosen, by name.
        name: The choice, as typed.
        field: Config field the choice was typed into, for the error, such as "algo.advantage".

    Raises:
        ValueError: If no entry has the name; says the nearest one and all of them.
    """
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{field}={name!r} is not one of {', '.join(sorted(table))}.{hint}")

"""Rules: logical axis names in, mesh axes out. A table each for the learner and the sampler."""

import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Rules = Mapping[str, str | tuple[str, ...] | None]

SAMPLER_RULES: Rules = {
    "layers": None,
    "vocab": "tensor",
    "embed": None,
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
}
"""Weights of the sampler: whole in every (data, fsdp) shard, whose slots decode on their own; split over "tensor"."""

LEARNER_RULES: Rules = {**SAMPLER_RULES, "embed": "fsdp", "act_batch": ("data", "fsdp"), "act_time": None}
"""Weights and activations of the learner: parameters, gradients and moments are also split over "fsdp"."""


def spec(axes: tuple[str, ...], rules: Rules) -> PartitionSpec:
    """The layout of an array with these logical axes.

    Raises:
        ValueError: If an axis has no rule.
    """
    for axis in axes:
        if axis not in rules:
            raise ValueError(f"Logical axis {axis!r} has no rule; there are rules for {', '.join(sorted(rules))}.")
    return PartitionSpec(*(rules[axis] for axis in axes))


def specs(axes: Any, rules: Rules) -> Any:
    """`spec` of every leaf of a tree of axis tuples."""
    return jax.tree.map(lambda names: spec(names, rules), axes, is_leaf=_is_axes)


def shardings(axes: Any, mesh: Mesh, rules: Rules) -> Any:
    """Layouts on a mesh for a tree of axis tuples."""
    return jax.tree.map(lambda names: NamedSharding(mesh, spec(names, rules)), axes, is_leaf=_is_axes)


def check_divisible(axes: Any, arrays: Any, mesh: Mesh, rules: Rules) -> None:
    """Check that every array can be split as the rules say.

    Args:
        axes: Tree of axis tuples.
        arrays: Arrays, or their shapes and dtypes, in the same tree.
        mesh: The devices.
        rules: The table.

    Raises:
        ValueError: Names the weight, the axis and the sizes; or an axis that has no rule.
    """

    def check(path, names, array):
        for axis, size, part in zip(names, array.shape, spec(names, rules), strict=True):
            over = (part,) if isinstance(part, str) else part or ()
            ways = math.prod(mesh.shape[mesh_axis] for mesh_axis in over)
            if size % ways:
                raise ValueError(
                    f"Axis {axis!r} of {jax.tree_util.keystr(path)} has size {size}, which mesh "
                    f"{'axis' if len(over) == 1 else 'axes'} {' x '.join(map(repr, over))} of size {ways} "
                    "does not divide."
                )

    jax.tree_util.tree_map_with_path(check, axes, arrays, is_leaf=_is_axes)


def _is_axes(x: Any) -> bool:
    return isinstance(x, tuple)

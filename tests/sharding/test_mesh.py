"""Meshes and layouts: sizes that fit, sizes that do not, and tables without holes."""

import jax
import pytest
from jax.sharding import PartitionSpec

from agentjax.sharding.mesh import AXES, MeshConfig, make_mesh
from agentjax.sharding.rules import LEARNER_RULES, SAMPLER_RULES, spec


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (MeshConfig(), (1, 1, 1)),
        (MeshConfig(data=-1), (8, 1, 1)),
        (MeshConfig(data=-1, tensor=2), (4, 1, 2)),
        (MeshConfig(data=2, fsdp=2, tensor=2), (2, 2, 2)),
        (MeshConfig(fsdp=-1, tensor=4), (1, 2, 4)),
    ],
)
def test_axes_have_the_sizes_asked_for(config, sizes):
    mesh = make_mesh(config, jax.devices()[:8])
    assert tuple(mesh.shape[axis] for axis in AXES) == sizes


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 0}, "mesh.data must be >= 1, or -1 for all the rest, got 0"),
        ({"data": -1, "fsdp": -1}, "Only one mesh axis may be -1"),
        ({"data": 3, "tensor": 3}, "mesh data=3 x fsdp=1 x tensor=3 does not fit 8 devices"),
        ({"data": -1, "tensor": 3}, "does not fit 8 devices"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(MeshConfig(**sizes), jax.devices()[:8])


def test_layouts_follow_the_tables():
    assert spec(("layers", "embed", "heads", "head_dim"), LEARNER_RULES) == PartitionSpec(None, "fsdp", "tensor", None)
    assert spec(("vocab", "embed"), SAMPLER_RULES) == PartitionSpec("tensor", None)
    with pytest.raises(ValueError, match="Logical axis 'haeds' has no rule"):
        spec(("haeds",), LEARNER_RULES)

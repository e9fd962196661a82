"""Meshes: sizes that fit, sizes that do not, and the order of devices."""

import jax
import pytest

from agentjax.sharding.mesh import AXES, MeshConfig, make_mesh


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


def test_a_smaller_mesh_takes_the_first_devices():
    devices = jax.devices()[:8]
    assert make_mesh(MeshConfig(fsdp=2, tensor=2), devices).devices.ravel().tolist() == devices[:4]


def test_neighbours_in_tensor_are_next_to_each_other():
    devices = make_mesh(MeshConfig(data=-1, tensor=2), jax.devices()[:8]).devices
    assert [[d.id for d in pair] for pair in devices[:, 0]] == [[0, 1], [2, 3], [4, 5], [6, 7]]

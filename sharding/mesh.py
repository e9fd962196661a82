"""The mesh: sizes of its axes in, devices in order out."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

AXES = ("data", "fsdp", "tensor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Sizes of the mesh axes. One may be -1: all devices that the others leave."""

    data: int = 1  # copies of the model, each with rows and slots of its own
    fsdp: int = 1  # shards of parameters and optimiser state, also with rows and slots of their own
    tensor: int = 1  # shards of heads, features and vocabulary

    def __post_init__(self):
        sizes = [getattr(self, axis) for axis in AXES]
        for axis, size in zip(AXES, sizes, strict=True):
            if size < 1 and size != -1:
                raise ValueError(f"mesh.{axis} must be >= 1, or -1 for all the rest, got {size}.")
        if sizes.count(-1) > 1:
            raise ValueError(f"Only one mesh axis may be -1, got {dict(zip(AXES, sizes, strict=True))}.")

    def sizes(self, devices: int) -> tuple[int, int, int]:
        """Size of each axis on so many devices.

        Raises:
            ValueError: If the axes do not fit them.
        """
        sizes = [getattr(self, axis) for axis in AXES]
        known = math.prod(size for size in sizes if size > 0)
        if known > devices or (-1 in sizes and devices % known):
            asked = " x ".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
            raise ValueError(f"mesh {asked} does not fit {devices} devices; mesh.data=-1 takes all the rest.")
        data, fsdp, tensor = (devices // known if size == -1 else size for size in sizes)
        return data, fsdp, tensor


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh with axes "data", "fsdp" and "tensor", neighbours in "tensor" next to each other.

    Args:
        config: Sizes.
        devices: The devices; all of them if None. A smaller mesh takes the first ones.

    Raises:
        ValueError: If the axes do not fit the devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = config.sizes(len(devices))
    count = math.prod(sizes)
    if count == len(devices) and count > 1:
        return jax.make_mesh(sizes, AXES, devices=devices, axis_types=(AxisType.Auto,) * len(AXES))
    return Mesh(np.array(devices[:count]).reshape(sizes), AXES)

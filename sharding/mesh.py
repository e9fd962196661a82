import dataclasses, jax, numpy as np
@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    data: int = 1
    fsdp: int = 1
    tensor: int = 1
def make_mesh(c, devices=None):
    devices = devices if devices is not None else jax.devices()[:c.data*c.fsdp*c.tensor]
    return jax.sharding.Mesh(np.array(devices).reshape(c.data,c.fsdp,c.tensor),("data","fsdp","tensor"))

"""Layouts: what the tables say is what devices hold, and what cannot be split is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from agentjax.sharding.mesh import MeshConfig, make_mesh
from agentjax.sharding.rules import LEARNER_RULES, SAMPLER_RULES, check_divisible, shardings, spec, specs

AXES = {"out": ("heads", "head_dim", "embed"), "norm": {"scale": ("embed",)}}


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8])


def test_layouts_follow_the_tables():
    assert spec(("layers", "embed", "heads", "head_dim"), LEARNER_RULES) == PartitionSpec(None, "fsdp", "tensor", None)
    assert spec(("vocab", "embed"), SAMPLER_RULES) == PartitionSpec("tensor", None)
    assert spec(("act_batch", "act_time"), LEARNER_RULES) == PartitionSpec(("data", "fsdp"), None)
    assert specs(AXES, SAMPLER_RULES) == {
        "out": PartitionSpec("tensor", None, None),
        "norm": {"scale": PartitionSpec(None)},
    }


def test_devices_hold_the_shards_the_tables_give(mesh):
    whole = np.arange(4 * 3 * 6.0).reshape(4, 3, 6)
    layout = shardings(AXES, mesh, LEARNER_RULES)["out"]
    assert isinstance(layout, NamedSharding)
    shards = {shard.device: shard.data for shard in jax.device_put(whole, layout).addressable_shards}
    for data, fsdp, tensor in np.ndindex(2, 2, 2):
        want = whole[2 * tensor : 2 * tensor + 2, :, 3 * fsdp : 3 * fsdp + 3]
        np.testing.assert_array_equal(shards[mesh.devices[data, fsdp, tensor]], want)


def check(mesh, shape, names, rules=LEARNER_RULES):
    check_divisible({"w": names}, {"w": jax.ShapeDtypeStruct(shape, jnp.float32)}, mesh, rules)


def test_what_divides_passes(mesh):
    check(mesh, (4, 3, 6), ("heads", "head_dim", "embed"))
    check(mesh, (4, 5), ("act_batch", "act_time"))


@pytest.mark.parametrize(
    ("shape", "names", "message"),
    [
        ((3, 4), ("heads", "embed"), r"Axis 'heads' of \['w'\] has size 3, .* mesh axis 'tensor' of size 2"),
        ((4, 5), ("heads", "embed"), r"Axis 'embed' of \['w'\] has size 5, .* mesh axis 'fsdp' of size 2"),
        ((6, 1), ("act_batch", "act_time"), r"Axis 'act_batch' .* size 6, .* mesh axes 'data' x 'fsdp' of size 4"),
        ((4,), ("haeds",), "Logical axis 'haeds' has no rule; there are rules for .*heads"),
    ],
)
def test_what_does_not_fit_is_named(mesh, shape, names, message):
    with pytest.raises(ValueError, match=message):
        check(mesh, shape, names)


def test_an_axis_without_a_rule_is_refused_in_every_table():
    for rules in (LEARNER_RULES, SAMPLER_RULES):
        with pytest.raises(ValueError, match="Logical axis 'haeds' has no rule"):
            spec(("haeds",), rules)

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentjax.checkpoint import Checkpoint, Checkpoints, abstract
from agentjax.envs.api import Task
from agentjax.rollout.pending import PendingGroup
from agentjax.rollout.progress import InFlight
from agentjax.trajectory import Segment, Source, StopReason, Trajectory

IDENTITY = {"model": {"num_layers": 3, "d_model": 8}, "tokenizer": "abc"}
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.0, 1e-3, 10)))


def make_params(seed=0):
    keys = jax.random.split(jax.random.key(seed), 2)
    return {
        "embed": jax.random.normal(keys[0], (16, 8)),
        "layers": {"wq": jax.random.normal(keys[1], (3, 8, 2, 4)).astype(jnp.bfloat16)},
    }


def make_checkpoint(seed=0, **changes):
    params = make_params(seed)
    opt_state = {"optimizer": OPTIMIZER.init(params), "step": jnp.int32(seed), "skipped": jnp.int32(0)}
    values = dict(params=params, opt_state=opt_state, data={"next": seed}, meta={"phase": "grpo", "count": [seed, 0.1]})
    return Checkpoint(**values | changes)


def open_folder(path, **settings):
    return Checkpoints(path, **dict(keep=2, identity=IDENTITY) | settings)


def restore(checkpoints, step, like):
    return checkpoints.restore(step, params=abstract(like.params), opt_state=abstract(like.opt_state))


def assert_same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    want = make_checkpoint(3)
    with open_folder(tmp_path) as checkpoints:
        checkpoints.save(3, want)
    with open_folder(tmp_path) as checkpoints:
        got = restore(checkpoints, checkpoints.latest(), want)
    assert_same((got.params, got.opt_state), (want.params, want.opt_state))
    assert (got.data, got.meta, got.pending) == (want.data, want.meta, ())


def test_parameters_can_be_had_alone(tmp_path):
    want = make_checkpoint(3)
    with open_folder(tmp_path) as checkpoints:
        checkpoints.save(3, want)
        checkpoints.wait()
        assert_same(checkpoints.restore_params(3, abstract(want.params)), want.params)


def test_trajectories_finished_and_in_flight_come_back(tmp_path):
    rng = np.random.default_rng(0)
    policy = Segment(Source.POLICY, np.arange(3, dtype=np.int32), rng.random(3, np.float32), np.full(3, 7, np.int32))
    segments = (Segment(Source.PROMPT, np.array([1, 2], np.int32)), policy)
    row = Trajectory("t", "4/g", 0, 2**32 - 1, segments, (), 1.0, StopReason.DONE)
    progress = InFlight(task_id="t", group_id="4/g", sample_index=1, seed=5, segments=segments, partial=policy)
    group = PendingGroup(4, Task("t", "g", 7, {"question": "1+1"}), 2, (row,), (progress,))
    want = make_checkpoint(1, pending=(group,))
    with open_folder(tmp_path) as checkpoints:
        checkpoints.save(1, want)
        checkpoints.wait()
        (got,) = restore(checkpoints, 1, want).pending
    assert got.task == group.task and (got.index, got.group_size) == (4, 2)
    assert json.dumps(got.to_json()) == json.dumps(group.to_json())
    np.testing.assert_array_equal(got.finished[0].sampler_logprobs, row.sampler_logprobs)
    assert got.in_flight[0].partial.logprobs.tobytes() == policy.logprobs.tobytes()


def test_training_on_changes_nothing_in_a_save_that_is_being_written(tmp_path):
    update = jax.jit(lambda params: jax.tree.map(lambda a: a + 1, params), donate_argnums=0)
    params = update({"w": jnp.zeros((1000, 1000))})
    meta = {"steps": [1]}
    like = abstract(params)
    with open_folder(tmp_path) as checkpoints:
        checkpoints.save(1, Checkpoint(params=params, opt_state={"n": jnp.int32(0)}, data={}, meta=meta))
        meta["steps"].append(2)
        for _ in range(20):
            params = update(params)
        jax.block_until_ready(params)
        checkpoints.wait()
        got = checkpoints.restore(1, params=like, opt_state={"n": jax.ShapeDtypeStruct((), jnp.int32)})
    assert np.unique(np.asarray(got.params["w"])) == [1.0] and got.meta == {"steps": [1]}


def test_only_the_newest_are_kept(tmp_path):
    with open_folder(tmp_path) as checkpoints:
        assert checkpoints.latest() is None
        for step in (1, 5, 6):
            checkpoints.save(step, make_checkpoint(step))
        checkpoints.wait()
        assert checkpoints.latest() == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "6"]


def test_saving_does_not_hold_up_training(tmp_path):
    checkpoint = make_checkpoint()
    blocked = []
    with open_folder(tmp_path) as checkpoints:
        for step in range(3):
            began = time.perf_counter()
            checkpoints.save(step, checkpoint)
            blocked.append(time.perf_counter() - began)
            checkpoints.wait()
    assert min(blocked) < 0.1


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        (IDENTITY | {"tokenizer": "xyz"}, "tokenizer was 'abc' and is 'xyz' now"),
        (IDENTITY | {"model": {"num_layers": 4, "d_model": 8}}, "model.num_layers was 3 and is 4 now"),
        (IDENTITY | {"model": {"num_layers": 3}}, "model.d_model was 8 and is None now"),
    ],
)
def test_another_model_or_tokenizer_is_refused_by_name(tmp_path, identity, said):
    want = make_checkpoint()
    with open_folder(tmp_path) as checkpoints:
        checkpoints.save(1, want)
    with open_folder(tmp_path, identity=identity) as checkpoints:
        with pytest.raises(ValueError, match=said):
            restore(checkpoints, 1, want)
        with pytest.raises(ValueError, match=said):
            checkpoints.restore_params(1, abstract(want.params))


def test_mistakes_say_what_is_wrong(tmp_path):
    want = make_checkpoint()
    with open_folder(tmp_path) as checkpoints:
        checkpoints.save(4, want)
        checkpoints.wait()
        with pytest.raises(ValueError, match="no checkpoint of step 7; complete steps: 4"):
            restore(checkpoints, 7, want)
        with pytest.raises(ValueError, match="already has a checkpoint of step 4"):
            checkpoints.save(4, want)
        with pytest.raises(ValueError, match="the meta of a checkpoint must be JSON"):
            checkpoints.save(5, dataclasses.replace(want, meta={"x": object()}))


def run_script(script, *args, **env):
    root = pathlib.Path(__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)} | env,
    )


ON_OTHER_MESHES = """
    import sys, jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from agentjax.checkpoint import Checkpoint, Checkpoints, abstract

    def placed(shape):
        mesh = Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), ("fsdp", "tensor"))
        key = jax.random.key(0)
        params = {"w": jax.random.normal(key, (8, 12)), "b": jnp.arange(12.0)}
        specs = {"w": P("fsdp", "tensor"), "b": P("tensor")}
        return jax.tree.map(lambda a, s: jax.device_put(a, NamedSharding(mesh, s)), params, specs)

    want = placed((4, 1))
    with Checkpoints(sys.argv[1], keep=1, identity={}) as checkpoints:
        checkpoints.save(1, Checkpoint(params=want, opt_state={"m": want}, data={}, meta={}))
        checkpoints.wait()
        for shape in ((1, 1), (2, 2), (1, 4), (2, 1)):
            like = abstract(placed(shape))
            got = checkpoints.restore(1, params=like, opt_state={"m": like})
            for tree in (got.params, got.opt_state["m"]):
                for name in want:
                    assert tree[name].sharding == like[name].sharding, (name, shape)
                    assert np.asarray(tree[name]).tobytes() == np.asarray(want[name]).tobytes(), (name, shape)
    print("same on every mesh")
"""


def test_another_mesh_restores_the_same_values_with_its_own_shardings(tmp_path):
    process = run_script(ON_OTHER_MESHES, tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "same on every mesh" in out


SAVE_AND_DIE = """
    import sys, jax.numpy as jnp
    from agentjax.checkpoint import Checkpoint, Checkpoints

    def checkpoint(step):
        arrays = {str(i): jnp.full((200, 1000), float(step)) for i in range(20)}
        return Checkpoint(params=arrays, opt_state={"step": jnp.int32(step)}, data={}, meta={"step": step})

    checkpoints = Checkpoints(sys.argv[1], keep=2, identity={})
    checkpoints.save(1, checkpoint(1))
    checkpoints.wait()
    print("saving", flush=True)
    checkpoints.save(2, checkpoint(2))
    print("saved", flush=True)
    checkpoints.wait()
    checkpoints.save(3, checkpoint(3))
    checkpoints.wait()
"""


@pytest.mark.parametrize(("after", "delay_s"), [("saving", 0.0), ("saved", 0.0), ("saved", 0.06)])
def test_a_killed_save_leaves_the_last_good_checkpoint(tmp_path, after, delay_s):
    process = run_script(SAVE_AND_DIE, tmp_path)
    while process.stdout.readline().strip() != after:
        assert process.poll() is None
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)

    like = {str(i): jax.ShapeDtypeStruct((200, 1000), jnp.float32) for i in range(20)}
    step_like = {"step": jax.ShapeDtypeStruct((), jnp.int32)}
    with Checkpoints(tmp_path, keep=2, identity={}) as checkpoints:
        latest = checkpoints.latest()
        assert latest == 1 if delay_s == 0 else latest in (1, 2, 3)
        got = checkpoints.restore(latest, params=like, opt_state=step_like)
        assert got.meta == {"step": latest} and int(got.opt_state["step"]) == latest
        assert all(np.unique(np.asarray(array)) == [latest] for array in got.params.values())
        checkpoints.save(9, got)
        checkpoints.wait()
        assert checkpoints.latest() == 9
    assert {path.name for path in tmp_path.iterdir()} <= {"1", "2", "3", "9"}

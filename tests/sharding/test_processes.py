"""Processes that start together: two real ones on loopback, and the mistakes one can make."""

import os
import socket
import subprocess
import sys
from unittest import mock

import jax
import pytest

from agentjax.sharding import processes
from agentjax.sharding.processes import Processes, start

WORKER = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from agentjax.sharding.mesh import AXES, MeshConfig, make_mesh
from agentjax.sharding.processes import start
me = start(timeout_s=20)
mesh = make_mesh(MeshConfig(data=2, tensor=-1))
split = NamedSharding(mesh, PartitionSpec(AXES))
rows = jax.make_array_from_callback((4,), split, lambda index: 10.0 ** np.arange(4)[index])
total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(rows)
print(me.index, me.count, jax.local_device_count(), dict(mesh.shape), float(total))
"""


def test_two_processes_sum_over_one_mesh():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    common = os.environ | devices | {processes.ADDRESS: address, processes.COUNT: "2"}
    run = lambda index: subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env=common | {processes.INDEX: str(index)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    workers = [run(index) for index in range(2)]
    try:
        said = [worker.communicate(timeout=60) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for index, (out, errors) in enumerate(said):
        assert workers[index].returncode == 0, errors
        assert f"{index} 2 2 {{'data': 2, 'fsdp': 1, 'tensor': 2}} 1111.0" in out.splitlines()  # Gloo talks, too


@pytest.fixture
def initialize(monkeypatch):
    """Stands in for JAX's own start, which this process must not do."""
    stand_in = mock.Mock()
    monkeypatch.setattr(jax.distributed, "initialize", stand_in)
    return stand_in


def test_a_process_alone_starts_nothing(initialize):
    assert start(environ={}) == Processes(index=0, count=1)
    initialize.assert_not_called()


def test_arguments_win_over_variables(initialize):
    environ = {processes.ADDRESS: "there:1", processes.COUNT: "9", processes.INDEX: "7"}
    assert start(coordinator="here:2", index=3, timeout_s=5, environ=environ) == Processes(index=3, count=9)
    initialize.assert_called_once_with("here:2", 9, 3, initialization_timeout=5)


def test_auto_leaves_all_to_jax(initialize):
    assert start(coordinator="auto", timeout_s=5, environ={}) == Processes(index=0, count=1)
    initialize.assert_called_once_with(initialization_timeout=5)


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        ({"count": 2}, {}, r"missing: coordinator \(JAX_COORDINATOR_ADDRESS\), index \(JAX_PROCESS_ID\)"),
        ({"coordinator": "a:1", "count": 2}, {}, r"missing: index \(JAX_PROCESS_ID\)\.$"),
        ({}, {processes.INDEX: "0"}, "missing: coordinator .*, count"),
        ({"coordinator": "a", "count": 2, "index": 0}, {}, "must be host:port or 'auto', got 'a'"),
        ({"coordinator": "a:99999", "count": 2, "index": 0}, {}, "must be host:port or 'auto', got 'a:99999'"),
        ({"coordinator": "a:1", "count": 0, "index": 0}, {}, r"count \(JAX_NUM_PROCESSES\) must be >= 1, got 0"),
        ({"coordinator": "a:1", "count": 2, "index": 2}, {}, r"index \(JAX_PROCESS_ID\) must be 0 to 1 of 2 .* got 2"),
        ({}, {processes.COUNT: "two"}, r"JAX_NUM_PROCESSES \(count\) must be a whole number, got 'two'"),
    ],
)
def test_what_is_missing_or_wrong_is_named(initialize, arguments, environ, message):
    with pytest.raises(ValueError, match=message):
        start(**arguments, environ=environ)
    initialize.assert_not_called()

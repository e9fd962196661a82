"""The programs compiled for a TPU pod slice that is not here. Needs the TPU compiler: `pip install libtpu`."""

import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies

from agentjax.learn.config import GRPOConfig, LearnerConfig, OptimizerConfig
from agentjax.learn.learner import Learner
from agentjax.learn.objectives import grpo_objective
from agentjax.learn.packing import PackShape, pack
from agentjax.models import decoder
from agentjax.models.config import ModelConfig
from agentjax.rollout.exchange import EngineShape
from agentjax.rollout.program import SamplingProgram
from agentjax.sharding.mesh import MeshConfig, make_mesh

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="the TPU compiler is not installed; `pip install libtpu` compiles these programs without a TPU",
)

MODEL = ModelConfig(
    vocab_size=1024, num_layers=2, d_model=256, num_heads=4, num_kv_heads=2, head_dim=128, d_ff=512, dtype="bfloat16"
)
ENGINE = EngineShape(
    slots=8, block_steps=4, chunk=16, prefill_rows=2, page_size=16, pages=32, max_pages=8, pages_per_block=2
)


@pytest.fixture(scope="module")
def mesh():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPU_SKIP_MDS_QUERY", "1")  # there is no metadata server to ask where this runs
        topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:4x4")
        yield make_mesh(MeshConfig(data=2, fsdp=4, tensor=2), topology.devices)


def test_sampling_loop_compiles(mesh):
    program = SamplingProgram(MODEL, ENGINE, mesh, unroll=False, scheduler_exchange=lambda shard, outbox: outbox)
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = jax.eval_shape(functools.partial(decoder.init_params, MODEL), key)
    loop: Any = program.loop  # jitted, though its type promises no more than a call
    compiled = loop.lower(params, jax.eval_shape(program.make_pages), key).compile()
    pools = 2 * MODEL.num_layers * ENGINE.pages * ENGINE.page_size * MODEL.head_dim * jnp.dtype(MODEL.dtype).itemsize
    assert compiled.memory_analysis().alias_size_in_bytes == pools  # of the one key-value head a device has: in place


def test_learner_update_compiles(mesh):
    layout = LearnerConfig(rows=8, row_length=256, logprob_chunk=64, remat=True)
    learner = Learner(
        model=MODEL, mesh=mesh, objective=grpo_objective(GRPOConfig()), optimizer=OptimizerConfig(), config=layout
    )
    batch = pack([], [], shape=PackShape(microbatches=2, rows=8, row_length=256))
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype), batch)
    compiled = jax.jit(learner.update).lower(learner.abstract_state, batch).compile()
    assert "all-gather" in compiled.as_text()  # weights come together where the rows are

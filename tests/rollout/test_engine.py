"""The engine against one forward pass of the model, and against itself in other company, shapes and meshes."""

import asyncio
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax.models import decoder
from agentjax.models.attention import packed_causal_attention
from agentjax.models.config import ModelConfig
from agentjax.rollout.engine import Engine
from agentjax.rollout.exchange import EngineShape
from agentjax.rollout.host import HostLoop
from agentjax.rollout.request import TurnRequest
from agentjax.sharding.mesh import MeshConfig, make_mesh

MODEL = ModelConfig(vocab_size=96, num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=64)
SHAPE = EngineShape(
    slots=4, block_steps=4, chunk=8, prefill_rows=2, page_size=4, pages=160, max_pages=16, pages_per_block=2, stop_ids=2
)
STOP = 5


@pytest.fixture(scope="module")
def params():
    params = decoder.init_params(MODEL, jax.random.key(0))
    return jax.tree.map(lambda p: 3 * p if p.ndim > 2 else p, params)  # spread the logits of a fresh model


def make_engine(shape: EngineShape = SHAPE, mesh: MeshConfig | None = None, **options) -> Engine:
    mesh = mesh or MeshConfig()
    devices = jax.devices()[: mesh.data * mesh.fsdp * mesh.tensor]
    return Engine(MODEL, shape, make_mesh(mesh, devices), seed=7, **options)


def play(engine: Engine, params, requests: list[TurnRequest], turns: int = 2):
    """Every request as an episode of some turns; the streams, and the log-probabilities of the sampled tokens."""

    async def episode(request: TurnRequest):
        rng = np.random.default_rng(request.trajectory)
        ids, known = request.ids, []
        for turn in range(turns):
            if turn:
                await asyncio.sleep(0.001)
                ids = np.concatenate([ids, rng.integers(0, 96, 3, np.int32)])
            sampled = await engine.sample(dataclasses.replace(request, ids=ids))
            known.append((len(ids), sampled))
            ids = np.concatenate([ids, sampled.ids])
        return ids, known

    async def everything():
        return await asyncio.gather(*(episode(r) for r in requests))

    with HostLoop() as host:
        future = host.start(everything())
        future.add_done_callback(lambda _: engine.notify())
        engine.run(params, future.done)
        return future.result()


def requests(count: int = 6, **options) -> list[TurnRequest]:
    """Three groups of samples with prompts of different lengths."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 96, length, np.int32) for length in (13, 4, 22)]
    return [TurnRequest(40 + i, str(i % 3), prompts[i % 3], 7, (STOP,), **options) for i in range(count)]


def streams(played) -> list[list[int]]:
    return [ids.tolist() for ids, _ in played]


@pytest.fixture(scope="module")
def reference(params):
    return play(make_engine(), params, requests())


def test_sampler_logprobs_equal_those_of_one_forward_pass(params, reference):
    for ids, known in reference:
        tokens, positions = jnp.asarray(ids)[None], jnp.arange(len(ids))[None]

        def attend(q, k, v, layer, state, positions=positions):
            return packed_causal_attention(q, k, v, jnp.ones_like(positions), positions), state

        hidden, _ = decoder.hidden_states(params, tokens, positions, config=MODEL, attend=attend)
        logprobs = jax.nn.log_softmax(decoder.logits(params, hidden, config=MODEL)[0])
        for start, turn in known:
            end = start + len(turn.ids)
            want = logprobs[jnp.arange(start - 1, end - 1), jnp.asarray(ids[start:end])]
            np.testing.assert_allclose(turn.logprobs, want, atol=1e-4)


def test_turns_end_at_a_stop_id_or_their_budget(reference):
    for _, known in reference:
        for _, turn in known:
            assert len(turn.ids) <= 7
            assert (turn.ids[-1] == STOP) == (turn.stop == "stop_id")
            assert STOP not in turn.ids[:-1]
            assert turn.stop == "stop_id" or len(turn.ids) == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": 2},
        {"block_steps": 1},
        {"block_steps": 9},
        {"chunk": 3},
        {"page_size": 8, "pages": 60, "max_pages": 8},
        {"pages": 18},  # preempts
        {"prefill_rows": 4, "pages_per_block": 5},
    ],
    ids=str,
)
def test_tokens_do_not_depend_on_shapes(params, reference, changes):
    assert streams(play(make_engine(dataclasses.replace(SHAPE, **changes)), params, requests())) == streams(reference)


def test_tokens_do_not_depend_on_company_or_order(params, reference):
    alone = [play(make_engine(), params, [request])[0] for request in requests()[:2]]
    assert streams(alone) == streams(reference)[:2]
    assert streams(play(make_engine(), params, requests()[::-1]))[::-1] == streams(reference)


@pytest.mark.parametrize("options", [{"driver": "python"}, {"unroll": True}], ids=str)
def test_tokens_do_not_depend_on_driver_or_unrolling(params, reference, options):
    assert streams(play(make_engine(**options), params, requests())) == streams(reference)


@pytest.mark.parametrize("driver", ["callback", "python"])
def test_tokens_do_not_depend_on_the_number_of_devices(params, reference, driver):
    engine = make_engine(mesh=MeshConfig(data=2, fsdp=2, tensor=2), driver=driver)
    assert streams(play(engine, params, requests())) == streams(reference)


def test_filtered_and_greedy_sampling_reach_the_program(params):
    greedy = play(make_engine(), params, requests(temperature=0.0))
    narrow = play(make_engine(), params, requests(top_k=1))
    assert streams(greedy) == streams(narrow)
    assert all(np.all(turn.logprobs == 0) for _, known in narrow for _, turn in known)


def test_nothing_compiles_in_a_second_run(params):
    from agentjax.monitor.compiles import CompileCounter

    engine = make_engine()
    play(engine, params, requests())
    engine.new_weights(1)
    with CompileCounter() as compiles:
        play(engine, params, requests(9, temperature=0.5, top_p=0.9), turns=3)
    assert compiles.count == 0


def test_a_failing_scheduler_raises_outside_the_program_and_the_engine_goes_on(params, reference, monkeypatch):
    engine = make_engine()
    scheduler = engine._schedulers[0]
    plan, calls = scheduler.plan, iter(range(1000))

    def broken_plan():
        if next(calls) == 2:
            raise RuntimeError("the scheduler broke")
        return plan()

    monkeypatch.setattr(scheduler, "plan", broken_plan)
    with pytest.raises(RuntimeError, match="the scheduler broke"):
        play(engine, params, requests())
    assert streams(play(engine, params, requests())) == streams(reference)


def test_a_scheduler_that_fails_for_good_raises_outside_the_program(params, monkeypatch):
    def broken_plan():
        raise RuntimeError("the scheduler broke for good")

    engine = make_engine()
    monkeypatch.setattr(engine._schedulers[0], "plan", broken_plan)
    with pytest.raises(RuntimeError, match="broke for good"):
        play(engine, params, requests())


def test_bad_engines_are_refused():
    with pytest.raises(ValueError, match="rollout.driver must be"):
        make_engine(driver="thread")
    with pytest.raises(ValueError, match="cannot hold one trajectory"):
        make_engine(dataclasses.replace(SHAPE, pages=3))

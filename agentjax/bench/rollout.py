"""Rollout benchmark: a model and an episode shape in, tokens per second out, beside the roofline of the same run.

    agentjax bench rollout --preset agentic --json result.json

The episode is synthetic, so that all the time is the engine's own: a prompt of random ids, turns that end at a stop
token (one id in 32 is one), and an observation of random ids after each turn but the last, given at once or after a
set latency. Weights are random.
"""

import argparse
import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentjax.models import decoder
from agentjax.models.config import ModelConfig
from agentjax.monitor.compiles import CompileCounter
from agentjax.rollout.engine import Engine
from agentjax.rollout.exchange import EngineShape
from agentjax.rollout.host import HostLoop
from agentjax.rollout.request import Sampler, TurnRequest
from agentjax.sharding.mesh import MeshConfig, make_mesh


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """A rollout to time.

    Attributes:
        model: Architecture.
        shape: Shapes of the engine.
        prompts: Distinct prompts.
        group: Samples of each.
        turns: Turns an episode has.
        prompt_tokens: Length of a prompt.
        observation_tokens: Length of an observation.
        response_tokens: Tokens an episode may hold after its prompt, observations included.
        tool_latency_s: Seconds the environment takes to answer a turn.
        in_flight: Episodes under way at once.
    """

    model: ModelConfig
    shape: EngineShape
    prompts: int = 16
    group: int = 8
    turns: int = 3
    prompt_tokens: int = 64
    observation_tokens: int = 16
    response_tokens: int = 128
    tool_latency_s: float = 0.0
    in_flight: int = 64


def agentic() -> Workload:
    """A 9.3M-parameter Qwen3-shaped decoder, three turns, 16-token observations: a small tool-using agent."""
    model = ModelConfig(
        vocab_size=4096,
        num_layers=6,
        d_model=256,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        d_ff=1536,
        rope_theta=1e6,
    )
    shape = EngineShape(
        slots=32,
        block_steps=8,
        chunk=32,
        prefill_rows=4,
        page_size=16,
        pages=2048,
        max_pages=13,
        pages_per_block=4,
        stop_ids=128,
    )
    return Workload(model=model, shape=shape)


PRESETS: dict[str, Callable[[], Workload]] = {"agentic": agentic}


def main(argv: Sequence[str]) -> dict[str, Any]:
    """`agentjax bench rollout`: see the module; `--json` is taken by the command line.

    Args:
        argv: Options.

    Returns:
        What `run` returns, with the preset's name.
    """
    parser = argparse.ArgumentParser("agentjax bench rollout", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="agentic", help="what to roll out")
    parser.add_argument("--repeats", type=int, default=3, help="timed rollouts at each latency; the median counts")
    parser.add_argument("--latencies", default="0,0.05,0.2", help="seconds the tool takes, separated by commas")
    options = parser.parse_args(argv)
    latencies_s = tuple(float(text) for text in options.latencies.split(","))
    result = run(PRESETS[options.preset](), latencies_s=latencies_s, repeats=options.repeats)
    return {"preset": options.preset, **result}


def run(workload: Workload, *, latencies_s: tuple[float, ...] = (0.0, 0.05, 0.2), repeats: int = 3) -> dict[str, Any]:
    """Time the workload, warm, at each tool latency.

    Returns:
        `tokens_per_s` (median over repeats, sampled tokens over wall time, at the first latency), `latencies` with the
        same for each latency, `roofline_tokens_per_s` (slots over the time of one decode step's matmuls alone) and
        `of_roofline`, `time` (shares of the last run), and what the scheduler counted.
    """
    mesh = make_mesh(MeshConfig())
    params = jax.jit(lambda key: decoder.init_params(workload.model, key))(jax.random.key(0))
    engine = Engine(workload.model, workload.shape, mesh, seed=0, unroll=True)
    with HostLoop() as host, CompileCounter() as compiles:
        _rollout(engine, host, params, workload)
        warm = compiles.count
        rates = {}
        for latency_s in latencies_s:
            timed = dataclasses.replace(workload, tool_latency_s=latency_s)
            rates[latency_s] = [_rollout(engine, host, params, timed) for _ in range(repeats)]
        recompiled = compiles.count - warm
    medians = {latency: float(np.median(each)) for latency, each in rates.items()}
    roofline = workload.shape.slots / _matmul_step_seconds(workload)
    first = medians[latencies_s[0]]
    counters = engine.counters
    return {
        "tokens_per_s": first,
        "latencies": {f"{1000 * latency:.0f}ms": rate for latency, rate in medians.items()},
        "latency_hidden": {f"{1000 * latency:.0f}ms": rate / first for latency, rate in medians.items()},
        "roofline_tokens_per_s": roofline,
        "of_roofline": first / roofline,
        "compiles_after_warmup": recompiled,
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        "occupancy": counters.sampled / max(counters.slot_steps, 1),
        "time_s": dataclasses.asdict(engine.times),
        "counters": dataclasses.asdict(counters),
    }


def _rollout(engine: Engine, host: HostLoop, params, workload: Workload) -> float:
    """Play every episode; sampled tokens per second."""
    before, started = engine.counters.sampled, time.monotonic()
    engine.new_weights(engine.version + 1)  # a step never starts with the pages of the step before
    done = host.start(_play_all(engine, workload))
    done.add_done_callback(lambda _: engine.notify())
    engine.run(params, done.done)
    done.result()
    return (engine.counters.sampled - before) / (time.monotonic() - started)


async def _play_all(sampler: Sampler, workload: Workload) -> None:
    gate = asyncio.Semaphore(workload.in_flight)
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, workload.model.vocab_size, (workload.prompts, workload.prompt_tokens), np.int32)

    async def play(prompt: int, sample: int) -> None:
        async with gate:
            await _play(sampler, workload, prompts[prompt], prompt, sample)

    await asyncio.gather(*(play(p, s) for p in range(workload.prompts) for s in range(workload.group)))


async def _play(sampler: Sampler, workload: Workload, ids: np.ndarray, prompt: int, sample: int) -> None:
    stop_ids = tuple(range(100, workload.model.vocab_size, 32))
    rng = np.random.default_rng([prompt, sample])
    end = len(ids) + workload.response_tokens
    for turn in range(workload.turns):
        if turn:
            await asyncio.sleep(workload.tool_latency_s)
            ids = np.concatenate([ids, rng.integers(200, 216, workload.observation_tokens, np.int32)])
        if len(ids) >= end:
            return
        request = TurnRequest(1000 * prompt + sample, str(prompt), ids, end - len(ids), stop_ids)
        ids = np.concatenate([ids, (await sampler.sample(request)).ids])


def _matmul_step_seconds(workload: Workload) -> float:
    """Best time of one decode step's matrix products, at the engine's number of slots and nothing else."""
    m, slots = workload.model, workload.shape.slots
    sizes = [
        (m.d_model, m.num_heads * m.head_dim),
        (m.d_model, m.num_kv_heads * m.head_dim),
        (m.d_model, m.num_kv_heads * m.head_dim),
        (m.num_heads * m.head_dim, m.d_model),
        (m.d_model, m.d_ff),
        (m.d_model, m.d_ff),
        (m.d_ff, m.d_model),
    ]
    shapes = sizes * m.num_layers + [(m.d_model, m.vocab_size)]
    weights = [jnp.ones(shape, m.dtype) for shape in shapes]
    inputs = {size: jnp.ones((slots, size), m.dtype) for size, _ in shapes}
    step = jax.jit(lambda xs, ws: [(xs[w.shape[0]] @ w).sum() for w in ws])
    jax.block_until_ready(step(inputs, weights))
    best = float("inf")
    for _ in range(20):
        started = time.perf_counter()
        jax.block_until_ready(step(inputs, weights))
        best = min(best, time.perf_counter() - started)
    return best

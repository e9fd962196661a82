"""Engine: parameters and turn requests in, sampled turns out. The façade over program, exchange and schedulers."""

import asyncio
import collections
import dataclasses
import functools
import threading
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from agentjax.models import decoder
from agentjax.models.config import ModelConfig
from agentjax.rollout import exchange
from agentjax.rollout.exchange import EngineShape
from agentjax.rollout.program import Params, SamplingProgram
from agentjax.rollout.request import SampledTurn, TurnRequest
from agentjax.rollout.scheduler import Counters, Run, Scheduler
from agentjax.sharding.rules import SAMPLER_RULES, shardings
from agentjax.trajectory import Segment, Source


@dataclasses.dataclass
class EngineTimes:
    """Where the engine's wall time went, in seconds.

    `decode` and `prefill` split the time inside blocks: a block without prefill gives the time of a decode step, what
    other blocks take beyond it is prefill. `exchange` is the scheduler's own work, `wait` the time in which nothing
    could run because every episode waited for a tool.
    """

    decode: float = 0.0
    prefill: float = 0.0
    exchange: float = 0.0
    wait: float = 0.0
    reshard: float = 0.0

    def copy(self) -> "EngineTimes":
        """The times as they are now."""
        return dataclasses.replace(self)

    def since(self, earlier: "EngineTimes") -> "EngineTimes":
        """What was spent since then."""
        now, before = dataclasses.asdict(self), dataclasses.asdict(earlier)
        return EngineTimes(**{name: now[name] - before[name] for name in now})


class Engine:
    """Samples turns for any number of concurrent episodes, with the parameters it is run with.

    `sample` is called by coroutines on any event loop; `run` is called by the thread that owns the devices and
    returns when the caller's condition holds. Requests and cached pages survive between runs.
    """

    def __init__(
        self,
        model: ModelConfig,
        shape: EngineShape,
        mesh: Mesh,
        *,
        seed: int,
        unroll: bool = False,
        driver: str = "callback",
        decode: Callable[[np.ndarray], str] | None = None,
        linger_s: float = 0.002,
    ):
        """Make an engine; nothing compiles before the first `run`.

        Args:
            model: Architecture of the policy.
            shape: Shapes per shard of the mesh.
            mesh: Mesh with axes data, fsdp and tensor.
            seed: Seed of the run key, from which every draw is derived.
            unroll: Unroll layers in the sampling program (faster on CPU, slower to compile).
            driver: "callback" keeps the loop on the device, "python" drives the same blocks from Python.
            decode: Ids to text, for stop strings.
            linger_s: How long an idle program waits for a request before it leaves.

        Raises:
            ValueError: If the driver is unknown or the pool cannot hold the longest stream.
        """
        if driver not in ("callback", "python"):
            raise ValueError(f"rollout.driver must be 'callback' or 'python', got {driver!r}.")
        if shape.pages < shape.max_pages:
            raise ValueError(
                f"rollout.pages={shape.pages} cannot hold one trajectory of {shape.max_pages} pages "
                f"of {shape.page_size} tokens."
            )
        self.program = SamplingProgram(model, shape, mesh, unroll, self._exchange)
        self.version = 0
        self.times = EngineTimes()
        self.resharded_bytes = 0
        self._driver = driver
        self._linger_s = linger_s
        self._run_key = jax.random.key(seed)
        self._schedulers = [Scheduler(shape, decode) for _ in range(self.program.shards)]
        self._homes: dict[str, int] = {}
        self._outbox = exchange.outbox(shape)
        self._layout = shardings(decoder.param_axes(model), mesh, SAMPLER_RULES)
        self._pages = None
        self._news = threading.Condition()
        self._finished: collections.deque[tuple[asyncio.Future, SampledTurn]] = collections.deque()
        self._until: Callable[[], bool] = lambda: True
        self._error: BaseException | None = None
        self._left_at = time.monotonic()
        self._step_s = 0.0

    async def sample(self, request: TurnRequest) -> SampledTurn:
        """Sample one turn; a cancelled call frees its slot at the next block."""
        future = asyncio.get_running_loop().create_future()
        scheduler = self._schedulers[self._home(request.group)]
        run = scheduler.submit(request, lambda turn: self._finished.append((future, turn)))
        self.notify()
        try:
            return await future
        except asyncio.CancelledError:
            scheduler.cancel(run)
            raise

    def notify(self) -> None:
        """Wake a waiting `run`, to look at its condition and at new requests."""
        with self._news:
            self._news.notify_all()

    def run(self, params: Params, until: Callable[[], bool]) -> None:
        """Serve requests with the given parameters until the condition holds.

        Args:
            params: Policy parameters in any layout; they are brought into the sampler's.
            until: Checked at every exchange and whenever something arrives; must be quick and touch no JAX.

        Raises:
            BaseException: What a scheduler raised; turns under way are recomputed at the next run.
        """
        params = self._place(params)
        self._until = until
        while not until():
            if not any(s.has_work for s in self._schedulers):
                self._wait_for_news(timeout_s=0.5)
                continue
            self._left_at = time.monotonic()
            self._drive(params)
            if self._error is not None:
                error, self._error = self._error, None
                raise error

    def new_weights(self, version: int) -> None:
        """Announce that the next `run` has other weights: cached pages are dropped, turns under way go on."""
        self.version = version
        self._homes.clear()
        for scheduler in self._schedulers:
            scheduler.drop_cache(version)

    def in_flight(self) -> list[Run]:
        """Turns queued or being sampled; call it between runs only."""
        return [run for scheduler in self._schedulers for run in scheduler.in_flight()]

    def under_way(self, request: TurnRequest) -> Segment | None:
        """The tokens sampled so far for a request, if there are any; call it between runs only."""
        for run in self.in_flight():
            sampled = slice(len(request.ids), run.length)
            if run.request is request and run.length > len(request.ids):
                return Segment(Source.POLICY, run.stream[sampled], run.logprobs[sampled], run.versions[sampled])
        return None

    @property
    def counters(self) -> Counters:
        """Totals over the shards since the engine was made."""
        each = [dataclasses.asdict(s.counters) for s in self._schedulers]
        return Counters(**{name: sum(c[name] for c in each) for name in each[0]})

    def _home(self, group: str) -> int:
        """The shard of a group: where its prefix is, or at first sight the one with the least to do."""
        if len(self._schedulers) == 1:
            return 0
        if group not in self._homes:
            self._homes[group] = int(np.argmin([s.load for s in self._schedulers]))
        return self._homes[group]

    def _place(self, params: Params) -> Params:
        """Bring parameters into the sampler's layout, in one program if that is another than they have."""
        weights, layouts = jax.tree.leaves(params), jax.tree.leaves(self._layout)
        if all(w.sharding.is_equivalent_to(layout, w.ndim) for w, layout in zip(weights, layouts, strict=True)):
            return params
        started = time.monotonic()
        params = jax.block_until_ready(self._reshard(params))
        self.times.reshard += time.monotonic() - started
        self.resharded_bytes += sum(weight.nbytes for weight in weights)
        return params

    @functools.cached_property
    def _reshard(self) -> Callable[[Params], Params]:
        return jax.jit(lambda params: params, out_shardings=self._layout)

    def _drive(self, params: Params) -> None:
        """Run the program until the host makes it leave."""
        if self._pages is None:
            self._pages = self.program.make_pages()
        pages, self._pages = self._pages, None  # donated: lost if the program fails, and then made anew
        if self._driver == "callback":
            pages = jax.block_until_ready(self.program.loop(params, pages, self._run_key))
        else:
            pages = self._drive_from_python(params, pages)
        self._pages = pages

    def _drive_from_python(self, params: Params, pages):
        """The loop of `SamplingProgram.loop`, in Python around the same block."""
        shape = self.program.shape
        inbox = exchange.inbox(shape)
        sent = np.zeros((self.program.shards, shape.slots, self._outbox.width), np.int32)
        while True:
            boxes = np.stack([self._exchange(shard, sent[shard]) for shard in range(self.program.shards)])
            fields = [inbox.views(box) for box in boxes]
            if any(f["leave"][0] for f in fields) or all(f["idle"][0] for f in fields):
                return pages
            pages, answers = self.program.block(params, pages, self._run_key, jnp.asarray(boxes))
            sent = np.asarray(answers)

    # The host side of the exchange: runs in a callback, touches NumPy only, never raises

    def _exchange(self, shard, sent) -> np.ndarray:
        scheduler = self._schedulers[int(shard)]
        try:
            return self._serve(scheduler, np.array(sent))
        except BaseException as error:  # an exception in a callback would hang the mesh: it is raised after leaving
            self._error = self._error or error
            return scheduler.leave()

    def _serve(self, scheduler: Scheduler, sent: np.ndarray) -> np.ndarray:
        entered = time.monotonic()
        self._account_block(scheduler, sent, entered - self._left_at)
        scheduler.commit(sent)
        self._deliver()
        if self._error is not None or self._until():
            box = scheduler.leave()
        else:
            entered += self._linger()
            box = scheduler.plan()
        self._left_at = time.monotonic()
        self.times.exchange += self._left_at - entered
        return box

    def _deliver(self) -> None:
        """Hand finished turns to the event loops that wait for them."""
        finished = [self._finished.popleft() for _ in range(len(self._finished))]
        for loop in {future.get_loop() for future, _ in finished}:
            batch = [(f, t) for f, t in finished if f.get_loop() is loop]
            loop.call_soon_threadsafe(_resolve, batch)

    def _linger(self) -> float:
        """Wait a moment for work before the program leaves, and say how long; no shard with work is kept waiting."""
        started = time.monotonic()
        if not any(s.has_work for s in self._schedulers):
            self._wait_for_news(self._linger_s)
        return time.monotonic() - started

    def _wait_for_news(self, timeout_s: float) -> None:
        started = time.monotonic()
        with self._news:
            self._news.wait_for(lambda: self._until() or any(s.has_work for s in self._schedulers), timeout_s)
        self.times.wait += time.monotonic() - started

    def _account_block(self, scheduler: Scheduler, sent: np.ndarray, seconds: float) -> None:
        """Split the time of the block before between decode and prefill (first shard only: they run in step)."""
        box = self._outbox.views(sent)
        if scheduler is not self._schedulers[0] or not box["ran"][0]:
            return
        steps = max(int(box["count"].max()), 1)
        decode = seconds
        if scheduler.prefilling:
            decode = min(seconds, steps * self._step_s)
        elif self._step_s:
            self._step_s += 0.1 * (seconds / steps - self._step_s)
        else:
            self._step_s = seconds / steps
        self.times.decode += decode
        self.times.prefill += seconds - decode


def _resolve(batch: list[tuple[asyncio.Future, SampledTurn]]) -> None:
    for future, turn in batch:
        if not future.done():
            future.set_result(turn)

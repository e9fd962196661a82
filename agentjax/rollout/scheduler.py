"""Scheduler: turn requests in, block plans out; sampled blocks in, finished turns out. One per shard, plain NumPy."""

import collections
import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np
from jaxtyping import Int32

from agentjax.rollout import exchange
from agentjax.rollout.pages import PagePool, PrefixTree
from agentjax.rollout.request import SampledTurn, Stop, TurnRequest


@dataclasses.dataclass(eq=False)
class Run:
    """A request on its way: its token stream, and how much of it has KV in which pages.

    The last token of `stream` never has KV: it is the next one to feed. `stream` and the two arrays beside it share
    one index.
    """

    request: TurnRequest
    deliver: Callable[[SampledTurn], None]
    started: float
    stream: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    length: int
    order: int = -1
    cancelled: bool = False
    cached: int = 0
    pages: list[int] = dataclasses.field(default_factory=list)
    copy: tuple[int, int, int] | None = None  # page to copy from, page to copy to, tokens valid without the copy
    chunk: int = 0  # tokens being prefilled in the block under way
    decoding: bool = False

    @property
    def pending(self) -> int:
        """Tokens to prefill before the last one can be fed."""
        return self.length - 1 - self.cached

    @property
    def limit(self) -> int:
        """Length of the stream when its budget is used up."""
        return len(self.stream)


@dataclasses.dataclass
class Counters:
    """What happened, in tokens, blocks and events since the engine began."""

    blocks: int = 0
    sampled: int = 0
    prefilled: int = 0
    reused: int = 0
    preempted: int = 0
    discarded: int = 0
    slot_steps: int = 0


class Scheduler:
    """Slots, pages and budgets of one shard of the mesh."""

    def __init__(self, shape: exchange.EngineShape, decode: Callable[[np.ndarray], str] | None = None):
        """Make an idle scheduler.

        Args:
            shape: Shapes of the sampling program.
            decode: Ids to text, needed for stop strings.
        """
        self.shape = shape
        self.version = 0
        self.counters = Counters()
        self.load = 0  # turns accepted and not yet delivered or forgotten
        self._decode = decode
        self._pool = PagePool(shape.pages)
        self._tree = PrefixTree(self._pool, shape.page_size)
        self._arrivals: collections.deque[Run] = collections.deque()
        self._waiting: collections.deque[Run] = collections.deque()
        self._slots: list[Run | None] = [None] * shape.slots
        self._admitted = 0
        self._inbox = np.zeros((shape.slots, exchange.inbox(shape).width), np.int32)
        self.tell = exchange.inbox(shape).views(self._inbox)
        self._outbox = exchange.outbox(shape)

    def submit(self, request: TurnRequest, deliver: Callable[[SampledTurn], None]) -> Run:
        """Queue a turn; callable from any thread.

        Args:
            request: The turn to sample.
            deliver: Called once, in the thread that commits, with the outcome.

        Returns:
            A handle for `cancel`.

        Raises:
            ValueError: If the request cannot be served at these shapes.
        """
        self._check(request)
        run = _new_run(request, deliver)
        self._arrivals.append(run)
        self.load += 1
        return run

    def cancel(self, run: Run) -> None:
        """Forget a request at the next plan; nothing is delivered. Callable from any thread."""
        run.cancelled = True

    @property
    def has_work(self) -> bool:
        """Whether a turn is queued or being sampled."""
        return bool(self._arrivals or self._waiting or any(self._slots))

    @property
    def prefilling(self) -> bool:
        """Whether the block last planned prefills."""
        return bool(self.tell["rows"][0])

    def plan(self) -> Int32[np.ndarray, "S X"]:
        """Decide the next block: admit, give pages a block ahead, write the inbox."""
        self._waiting.extend(self._arrivals.popleft() for _ in range(len(self._arrivals)))
        self._forget_cancelled()
        self._admit()
        for run in sorted(self._active(), key=lambda r: r.order):
            self._cover_block(run)
        self._write_inbox()
        return self._inbox

    def leave(self) -> Int32[np.ndarray, "S X"]:
        """An inbox that ends the program; the block it goes with is not run, so nothing is planned."""
        self.tell["leave"][:] = 1
        return self._inbox

    def commit(self, buffer: Int32[np.ndarray, "S Y"]) -> None:
        """Take in what the last planned block did, and deliver the turns that ended."""
        box = self._outbox.views(buffer)
        if not box["ran"][0]:
            return
        self.counters.blocks += 1
        for slot, run in enumerate(self._slots):
            if run is None:
                continue
            run.copy = None
            self._take_prefill(run)
            if run.decoding:
                count = int(box["count"][slot])
                self._take_tokens(run, box["tokens"][slot, :count], box["logprobs"][slot, :count])
                self._finish_if_ended(slot, run, bool(box["stopped"][slot]), count)

    def drop_cache(self, version: int) -> None:
        """The weights have changed: forget every cached page; turns under way will be recomputed and go on."""
        self.version = version
        for run in sorted(self._active(), key=lambda r: -r.order):
            run.cached, run.copy = 0, None
            self._preempt(run)
        self._tree.clear()

    def in_flight(self) -> list[Run]:
        """Turns queued or being sampled, oldest first."""
        return [*sorted(self._active(), key=lambda r: r.order), *self._waiting, *self._arrivals]

    def check_pages(self) -> None:
        """Assert that pages are neither leaked nor shared wrongly: a law for tests."""
        held = collections.Counter(page for run in self._active() for page in run.pages)
        held.update(node.page for node in self._tree._nodes())
        assert all(self._pool.references[page] == held[page] for page in range(self.shape.pages))
        assert self._pool.free == self.shape.pages - len(held)

    # Admission

    def _check(self, request: TurnRequest) -> None:
        longest = self.shape.max_pages * self.shape.page_size
        if len(request.ids) + request.max_tokens > longest:
            raise ValueError(
                f"A turn of {len(request.ids)} + {request.max_tokens} tokens does not fit a stream of {longest} "
                f"({self.shape.max_pages} pages of {self.shape.page_size}): raise budget.total_tokens."
            )
        if len(request.ids) == 0 or request.max_tokens <= len(request.sampled):
            raise ValueError(f"A turn needs a prompt and a budget, got {len(request.ids)} and {request.max_tokens}.")
        if len(request.stop_ids) > self.shape.stop_ids:
            raise ValueError(f"At most {self.shape.stop_ids} stop ids fit a slot, got {len(request.stop_ids)}.")
        if request.stop_strings and self._decode is None:
            raise ValueError("Stop strings need an engine made with a tokenizer.")

    def _admit(self) -> None:
        """Give free slots to waiting turns in order of arrival, leaving out those that wait for a shared prefill."""
        free = [slot for slot, run in enumerate(self._slots) if run is None]
        kept: list[Run] = []
        while free and self._waiting:
            run = self._waiting.popleft()
            if self._prefix_is_under_way(run):
                kept.append(run)
            elif self._start(run, free[0]):
                free.pop(0)
            else:
                kept.append(run)
                break
        self._waiting.extendleft(reversed(kept))

    def _prefix_is_under_way(self, run: Run) -> bool:
        """Whether a sample of the same group is prefilling tokens this turn could share a block later."""
        others = [o for o in self._active() if o.request.group == run.request.group and o.pending > 0]
        if not others:
            return False
        known = run.stream[: run.length - 1]
        common = max(_common_length(known, other.stream[: other.length - 1]) for other in others)
        return common > self._tree.match(known).length

    def _start(self, run: Run, slot: int) -> bool:
        """Put a turn in a slot on top of its longest cached prefix; False if pages are short."""
        match = self._tree.match(run.stream[: run.length - 1])
        for page in match.pages:
            self._pool.hold(page)
        run.pages = list(match.pages)
        shared = len(match.pages) * self.shape.page_size
        if not self._extend(run, run.length):
            self._release(run)
            return False
        if match.partial is not None:
            run.copy = (match.partial, run.pages[len(match.pages)], shared)
        run.cached = match.length
        run.order = self._admitted
        self._admitted += 1
        self._slots[slot] = run
        self.counters.reused += match.length
        return True

    def _forget_cancelled(self) -> None:
        for run in [run for run in self._waiting if run.cancelled]:
            self._waiting.remove(run)
            self.load -= 1
        for slot, seated in enumerate(self._slots):
            if seated is not None and seated.cancelled:
                self._leave_slot(slot, seated)

    def _leave_slot(self, slot: int, run: Run) -> None:
        self._retire(run)
        self._slots[slot] = None
        self.load -= 1

    # Pages

    def _cover_block(self, run: Run) -> None:
        """Give a turn the pages its next block writes, taking them from the youngest if need be."""
        if run not in self._slots:
            return
        chunk = min(run.pending, self.shape.chunk)
        decoded = min(self.shape.block_steps, run.limit - run.length) if chunk == run.pending else 0
        while not self._extend(run, run.cached + chunk + decoded):
            victim = max(self._active(), key=lambda r: r.order)
            self._preempt(victim)
            self.counters.preempted += 1
            if victim is run:
                return

    def _extend(self, run: Run, tokens: int) -> bool:
        """Take pages until a turn can hold `tokens`; False, with what there was taken, if they run out."""
        missing = math.ceil(tokens / self.shape.page_size) - len(run.pages)
        if missing > self._pool.free:
            self._tree.evict(missing)
        for _ in range(missing):
            if not self._pool.free:
                return False
            run.pages.append(self._pool.take())
        return True

    def _preempt(self, run: Run) -> None:
        """Take a turn out of its slot; it is recomputed from the front of the queue."""
        self._slots[self._slots.index(run)] = None
        self._retire(run)
        self._waiting.appendleft(run)

    def _retire(self, run: Run) -> None:
        """Leave what a turn computed in the prefix tree and let go of its pages."""
        valid = run.cached if run.copy is None else run.copy[2]
        if valid:
            self._tree.insert(run.stream[:valid], run.pages)
        self._release(run)

    def _release(self, run: Run) -> None:
        for page in run.pages:
            self._pool.release(page)
        run.pages, run.cached, run.copy = [], 0, None

    # The block

    def _active(self) -> list[Run]:
        return [run for run in self._slots if run is not None]

    def _write_inbox(self) -> None:
        tell = self.tell
        for name in ("leave", "idle", "active", "chunk_len"):
            tell[name][:] = 0
        for name in ("copy_from", "copy_to"):
            tell[name][:] = -1
        rows = []
        for slot, run in enumerate(self._slots):
            if run is None:
                continue
            run.chunk = min(run.pending, self.shape.chunk)
            run.decoding = run.chunk == run.pending
            self._write_slot(slot, run)
            if run.chunk:
                rows.append(slot)
        tell["order"][: len(rows)] = rows
        tell["rows"][:] = len(rows)
        tell["idle"][:] = not any(self._slots)

    def _write_slot(self, slot: int, run: Run) -> None:
        tell, request = self.tell, run.request
        tell["active"][slot] = run.decoding
        tell["token"][slot] = run.stream[run.length - 1]
        tell["position"][slot] = run.length - 1
        tell["budget"][slot] = run.limit - run.length
        tell["trajectory"].view(np.uint32)[slot] = request.trajectory
        tell["temperature"][slot] = request.temperature
        tell["top_k"][slot] = request.top_k
        tell["top_p"][slot] = request.top_p
        tell["stop_ids"][slot] = -1
        tell["stop_ids"][slot, : len(request.stop_ids)] = request.stop_ids
        tell["page_table"][slot, : len(run.pages)] = run.pages
        if run.copy is not None:
            tell["copy_from"][slot], tell["copy_to"][slot] = run.copy[:2]
        tell["chunk_start"][slot] = run.cached
        tell["chunk_len"][slot] = run.chunk
        tell["chunk"][slot, : run.chunk] = run.stream[run.cached : run.cached + run.chunk]

    def _take_prefill(self, run: Run) -> None:
        if not run.chunk:
            return
        run.cached += run.chunk
        self.counters.prefilled += run.chunk
        if run.pending == 0:
            self._tree.insert(run.stream[: run.cached], run.pages)

    def _take_tokens(self, run: Run, tokens: np.ndarray, logprobs: np.ndarray) -> None:
        new = slice(run.length, run.length + len(tokens))
        run.stream[new], run.logprobs[new], run.versions[new] = tokens, logprobs, self.version
        run.length += len(tokens)
        run.cached = run.length - 1
        self.counters.sampled += len(tokens)
        self.counters.slot_steps += self.shape.block_steps

    def _finish_if_ended(self, slot: int, run: Run, stopped: bool, count: int) -> None:
        request = run.request
        match = self._stop_string(run, count) if request.stop_strings else None
        if match is None and not stopped:
            return
        start = len(request.ids)
        last_id = int(run.stream[run.length - 1])
        stop: Stop = "stop_string" if match else "stop_id" if last_id in request.stop_ids else "length"
        sampled = slice(start, run.length)
        self._leave_slot(slot, run)
        run.deliver(
            SampledTurn(
                ids=run.stream[sampled].copy(),
                logprobs=run.logprobs[sampled].copy(),
                policy_versions=run.versions[sampled].copy(),
                stop=stop,
                stop_string=match,
                seconds=time.monotonic() - run.started,
            )
        )

    def _stop_string(self, run: Run, count: int) -> str | None:
        """The first stop string in the sampled text, the stream rewound to the token that completes it."""
        assert self._decode is not None
        start = len(run.request.ids)
        for end in range(run.length - count + 1, run.length + 1):
            text = self._decode(run.stream[start:end])
            for string in run.request.stop_strings:
                if string in text:
                    self.counters.discarded += run.length - end
                    run.length, run.cached = end, min(run.cached, end)
                    return string
        return None


def _new_run(request: TurnRequest, deliver: Callable[[SampledTurn], None]) -> Run:
    start, begun = len(request.ids), len(request.sampled)
    limit = start + request.max_tokens
    stream, logprobs = np.zeros(limit, np.int32), np.zeros(limit, np.float32)
    versions = np.zeros(limit, np.int32)
    stream[:start] = request.ids
    resumed = slice(start, start + begun)
    stream[resumed], logprobs[resumed], versions[resumed] = (
        request.sampled,
        request.sampled_logprobs,
        request.sampled_versions,
    )
    return Run(request, deliver, time.monotonic(), stream, logprobs, versions, start + begun)


def _common_length(a: np.ndarray, b: np.ndarray) -> int:
    shared = min(len(a), len(b))
    differs = a[:shared] != b[:shared]
    return int(differs.argmax()) if differs.any() else shared

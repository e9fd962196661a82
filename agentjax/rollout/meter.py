"""Meter: an engine's totals at two moments in, the speed and the split of the time between them out."""

import time

from agentjax.rollout.engine import Engine


class Meter:
    """Measures an engine from the moment it is made."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._started = time.monotonic()
        self._counters = engine.counters
        self._times = engine.times.copy()
        self._resharded_bytes = engine.resharded_bytes

    def seconds(self) -> dict[str, float]:
        """Wall seconds by what they went into, for a `PhaseClock`."""
        spent = self._engine.times.since(self._times)
        return {"decode": spent.decode, "prefill": spent.prefill, "tool_wait": spent.wait, "exchange": spent.exchange}

    def metrics(self) -> dict[str, float]:
        """Speed and counts.

        `perf/tokens_per_s`: sampled tokens over wall seconds. `perf/slot_occupancy`: share of slot steps that sampled.
        `perf/prefilled_tokens`, `perf/reused_tokens` (found in the prefix tree), `perf/preemptions`.
        `time/rollout_s`; `time/reshard_s` and `perf/reshard_bytes`: bringing weights into the sampler's layout.
        """
        now, before = self._engine.counters, self._counters
        seconds = time.monotonic() - self._started
        sampled = now.sampled - before.sampled
        return {
            "time/rollout_s": seconds,
            "perf/tokens_per_s": sampled / seconds,
            "perf/slot_occupancy": sampled / max(now.slot_steps - before.slot_steps, 1),
            "perf/prefilled_tokens": float(now.prefilled - before.prefilled),
            "perf/reused_tokens": float(now.reused - before.reused),
            "perf/preemptions": float(now.preempted - before.preempted),
            "time/reshard_s": self._engine.times.since(self._times).reshard,
            "perf/reshard_bytes": float(self._engine.resharded_bytes - self._resharded_bytes),
        }

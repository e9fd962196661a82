"""Clock: phases of a step in, the split of its wall time out."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping


class PhaseClock:
    """Splits the wall time of each step into phases; what no phase claims is idle.

    clock = PhaseClock()
    with clock.phase("train"):
        ...
    clock.add({"decode": 1.2, "tool_wait": 0.3})    # seconds that the engine measured itself
    metrics |= clock.lap()                          # time/train_s, time/decode_s, ..., time/idle_s, time/step_s
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        """Start the first lap.

        Args:
            now: Gives monotonic seconds.
        """
        self._now = now
        self._lap_began = now()
        self._seconds: dict[str, float] = {}
        self._open: list[tuple[str, float]] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside as a phase; a phase within a phase is counted once, as the inner one."""
        self._pause()
        self._open.append((name, self._now()))
        try:
            yield
        finally:
            self._pause()
            self._open.pop()
            if self._open:
                self._open[-1] = (self._open[-1][0], self._now())

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count seconds that were measured elsewhere, outside of any phase."""
        for name, value in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value

    def lap(self) -> dict[str, float]:
        """Seconds of each phase since the last lap, as metrics `time/<phase>_s`, with the idle rest and the whole."""
        self._pause()
        now = self._now()
        self._open = [(name, now) for name, _ in self._open]
        step_s, self._lap_began = now - self._lap_began, now
        phases, self._seconds = self._seconds, {}
        split = {f"time/{name}_s": seconds for name, seconds in phases.items()}
        return split | {"time/idle_s": max(0.0, step_s - sum(phases.values())), "time/step_s": step_s}

    def _pause(self) -> None:
        """Book the time of the innermost open phase up to now."""
        if self._open:
            name, began = self._open[-1]
            self.add({name: self._now() - began})
            self._open[-1] = (name, self._now())

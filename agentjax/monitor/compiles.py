"""Compilations: a running program in, the number of XLA compilations out."""

import threading

import jax

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """Counts XLA compilations of this process, and their seconds, while it is open.

    with CompileCounter() as compiles:
        warm_up()
        warm = compiles.count
        run()
        recompiled = compiles.count - warm
    """

    def __init__(self):
        self.count = 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> "CompileCounter":
        jax.monitoring.register_event_duration_secs_listener(self._hear)
        return self

    def __exit__(self, *exc_info) -> None:
        jax.monitoring.unregister_event_duration_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_) -> None:
        if event == _COMPILE_EVENT:
            with self._lock:  # threads compile too
                self.count += 1
                self.seconds += duration_secs

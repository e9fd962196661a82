"""Interrupts: SIGTERM and Ctrl-C in, a flag out that other threads see at once."""

import signal
import socket
import threading
from collections.abc import Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupts:
    """Turns the first SIGTERM or Ctrl-C into a request to save and stop; a second Ctrl-C stops at once.

    Python runs signal handlers only between bytecodes of the main thread, which may sit in a compiled program for
    long; the wake-up socket is written by the C handler, so a thread of ours hears of the signal immediately.
    """

    def __init__(self, on_request: Callable[[], None] = lambda: None):
        """Prepare; nothing is installed before `with`.

        Args:
            on_request: Called in a thread of ours when the first signal arrives.
        """
        self.on_request = on_request
        self._requested = threading.Event()

    @property
    def requested(self) -> bool:
        """Whether somebody asked to stop."""
        return self._requested.is_set()

    def __enter__(self) -> "Interrupts":
        self._hear, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        self._previous_fd = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="interrupts", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info) -> None:
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._wake.close()
        self._thread.join()
        self._hear.close()

    def _listen(self) -> None:
        while received := self._hear.recv(1):
            if received[0] in _SIGNALS and not self.requested:
                self._requested.set()
                self.on_request()

    def _handle(self, number: int, frame) -> None:
        if number == signal.SIGINT and self._requested.is_set() and self._seen_twice():
            raise KeyboardInterrupt

    def _seen_twice(self) -> bool:
        self._count = getattr(self, "_count", 0) + 1
        return self._count > 1

"""Interrupts: SIGTERM and Ctrl-C in, a flag out that other threads see at once."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupts:
    """Turns the first SIGTERM or Ctrl-C into a request to save and stop; Ctrl-C after that ends the process at once.

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
            elif received[0] == signal.SIGINT:
                _end_at_once()

    def _handle(self, number: int, frame) -> None:
        """Nothing: a handler must be there for the socket to be written, and for the signal not to end the process."""


def _end_at_once() -> None:
    """End the process as a kill does, which a run survives; a main thread in a compiled program cannot be unwound."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")  # a live view hides the cursor
        sys.stdout.flush()
    os._exit(128 + signal.SIGINT)

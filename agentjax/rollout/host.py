"""Host: the one asyncio loop, in a thread of its own, where episodes, tools and sandboxes live."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class HostLoop:
    """An event loop in a background thread; the main thread is left to the devices."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="host", daemon=True)

    def __enter__(self) -> "HostLoop":
        self._thread.start()
        return self

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Run a coroutine on the loop without waiting for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return self.start(coroutine).result(timeout_s)

    def __exit__(self, *exc_info) -> None:
        self.call(_cancel_the_rest(), timeout_s=30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_the_rest() -> None:
    """Cancel what still runs and let it clean up."""
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)

"""Threads: blocking work in, an awaitable of its result out."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any


def in_thread(work: Callable[[], Any], *, name: str) -> asyncio.Future:
    """Run blocking work in a daemon thread of its own.

    Not `asyncio.to_thread`: work that hangs would fill its small pool, starve later calls and keep the process from
    exiting.

    Args:
        work: Called once; whatever it raises, the awaiting caller gets. StopIteration, which a future refuses, comes as
            a RuntimeError.
        name: Name of the thread.
    """
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def deliver(settle: Callable[[Any], None], value: Any) -> None:
        if not future.done():  # else the caller gave up
            settle(value)

    def run() -> None:
        try:
            settle, value = future.set_result, work()
        except BaseException as error:  # handed to the caller, who says which failures it expects
            settle, value = future.set_exception, _settleable(error)
        try:
            loop.call_soon_threadsafe(deliver, settle, value)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _settleable(error: BaseException) -> BaseException:
    return RuntimeError(repr(error)) if isinstance(error, StopIteration) else error

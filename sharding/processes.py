"""Processes: an address and two numbers in, one JAX runtime over several processes out."""

import dataclasses
import os
from collections.abc import Mapping

import jax

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
DETECT = "auto"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    """Which of how many processes this is."""

    index: int = 0  # of this process; process 0 also coordinates
    count: int = 1  # in all


def start(
    *,
    coordinator: str | None = None,
    count: int | None = None,
    index: int | None = None,
    timeout_s: int = 300,
    environ: Mapping[str, str] = os.environ,
) -> Processes:
    """Join the other processes, so that `jax.devices()` lists the devices of all. Call it before JAX makes an array.

    What is None is read from `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`. Where these are
    unset, too, this process is alone and nothing starts.

    Args:
        coordinator: "host:port" of process 0, which listens there; the same in every process. "auto" finds all three
            values, where JAX can: on TPU pods, under Slurm, Open MPI or Kubernetes.
        count: Number of processes.
        index: Index of this process, 0 to count - 1.
        timeout_s: Seconds to wait for the others.
        environ: Environment variables.

    Returns:
        Index and number of processes.

    Raises:
        ValueError: If some of the three are missing, or one makes no sense.
        RuntimeError: If JAX has used its devices or started already.
    """
    coordinator = coordinator or environ.get(ADDRESS)
    if coordinator == DETECT:
        jax.distributed.initialize(initialization_timeout=timeout_s)
        return Processes(index=jax.process_index(), count=jax.process_count())
    count = _number(count, "count", COUNT, environ)
    index = _number(index, "index", INDEX, environ)
    if not coordinator and count is None and index is None:
        return Processes()
    processes = _checked(coordinator, count, index)
    jax.distributed.initialize(coordinator, processes.count, processes.index, initialization_timeout=timeout_s)
    return processes


def _number(value: int | None, name: str, variable: str, environ: Mapping[str, str]) -> int | None:
    text = environ.get(variable)
    if value is not None or not text:
        return value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{variable} ({name}) must be a whole number, got {text!r}.") from None


def _checked(coordinator: str | None, count: int | None, index: int | None) -> Processes:
    given = {f"coordinator ({ADDRESS})": coordinator, f"count ({COUNT})": count, f"index ({INDEX})": index}
    missing = [name for name, value in given.items() if value in (None, "")]
    if not coordinator or count is None or index is None:
        raise ValueError(f"Several processes need all of {', '.join(given)}; missing: {', '.join(missing)}.")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"coordinator ({ADDRESS}) must be host:port or {DETECT!r}, got {coordinator!r}.")
    if count < 1:
        raise ValueError(f"count ({COUNT}) must be >= 1, got {count}.")
    if not 0 <= index < count:
        raise ValueError(f"index ({INDEX}) must be 0 to {count - 1} of {count} processes, got {index}.")
    return Processes(index=index, count=count)

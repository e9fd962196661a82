"""Checkpoints: the whole state of a run in, one atomic folder a step out; and back, onto any mesh."""

import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree
from orbax.checkpoint.checkpoint_managers import LatestN

from agentjax.rollout.pending import PendingGroup

_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a run needs to go on as if it had never stopped.

    Attributes:
        params: Parameters of the policy.
        opt_state: State of the optimiser, and whatever else on the devices an update changes.
        data: State of the task stream; JSON values.
        meta: Config, seeds, phase, counters and the monitors' state; JSON values.
        pending: Groups being played, with their finished and in-flight trajectories.
    """

    params: PyTree
    opt_state: PyTree
    data: Mapping[str, Any]
    meta: Mapping[str, Any]
    pending: Sequence[PendingGroup] = ()


class Checkpoints:
    """The checkpoints of one run, in one folder.

    `save` copies the arrays off the devices, and writes in the background. A step appears when it is complete; what a
    killed process left half written is never seen again.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int, identity: Mapping[str, Any], read_only: bool = False
    ):
        """Open a folder, or begin it.

        Args:
            folder: Where the steps are.
            keep: Newest steps kept.
            identity: What parameters mean nothing without, such as {"model": {...}, "tokenizer": fingerprint}; JSON
                values. A checkpoint of another identity is refused.
            read_only: Touch nothing, since another process may be saving there.
        """
        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax tells absl about every file
        self._folder = pathlib.Path(folder).resolve()
        self._identity = dict(identity)
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=LatestN(keep),
                cleanup_tmp_directories=not read_only,
                create=not read_only,
                read_only=read_only,
                enable_async_checkpointing=True,
            ),
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def latest(self) -> int | None:
        """The newest complete step, None if there is none."""
        return self._manager.latest_step()

    def save(self, step: int, checkpoint: Checkpoint) -> None:
        """Save a step. Returns once the arrays are copied; waits for the save before it, if that is still going on.

        Raises:
            ValueError: If the step is already there, or `data` or `meta` hold something that is not JSON.
            BaseException: What the save before it failed with.
        """
        if step in self._manager.all_steps():
            raise ValueError(f"{self._folder} already has a checkpoint of step {step}.")
        run = {
            "version": _VERSION,
            "identity": self._identity,
            "data": _json_copy("data", checkpoint.data),
            "meta": _json_copy("meta", checkpoint.meta),
            "pending": [group.to_json() for group in checkpoint.pending],
        }
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(checkpoint.params),
                opt_state=ocp.args.StandardSave(checkpoint.opt_state),
                run=ocp.args.JsonSave(run),
            ),
            force=True,
        )

    def restore(self, step: int, *, params: PyTree, opt_state: PyTree) -> Checkpoint:
        """Read a step.

        Args:
            step: One that is there.
            params: `jax.ShapeDtypeStruct`s with the shardings wanted, which may differ from those saved.
            opt_state: The same for the optimiser's state.

        Raises:
            ValueError: If the step is not there, or its identity is not that of this run.
        """
        run = self._run_of(step)
        arrays = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(params), opt_state=ocp.args.StandardRestore(opt_state)
            ),
        )
        return Checkpoint(
            params=arrays["params"],
            opt_state=arrays["opt_state"],
            data=run["data"],
            meta=run["meta"],
            pending=tuple(map(PendingGroup.from_json, run["pending"])),
        )

    def restore_params(self, step: int, params: PyTree) -> PyTree:
        """Read the parameters of a step alone, as `restore` does."""
        self._run_of(step)
        return self._manager.restore(step, args=ocp.args.Composite(params=ocp.args.StandardRestore(params)))["params"]

    def meta(self, step: int) -> Mapping[str, Any]:
        """Read the `meta` of a step alone, to know what to restore."""
        return self._run_of(step)["meta"]

    def clear(self) -> None:
        """Delete every step."""
        for step in self._manager.all_steps():
            self._manager.delete(step)

    def wait(self) -> None:
        """Wait until what was saved is on disk.

        Raises:
            BaseException: What the save failed with.
        """
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait, and let go of the folder."""
        self._manager.close()

    def _run_of(self, step: int) -> dict[str, Any]:
        """The JSON part of a step, once it is known to belong to this run."""
        if step not in self._manager.all_steps():
            there = ", ".join(map(str, self._manager.all_steps())) or "none"
            raise ValueError(f"{self._folder} has no checkpoint of step {step}; complete steps: {there}.")
        run = self._manager.restore(step, args=ocp.args.Composite(run=ocp.args.JsonRestore()))["run"]
        if run["version"] != _VERSION:
            raise ValueError(
                f"the checkpoint of step {step} in {self._folder} has version {run['version']}, "
                f"this AgentJAX reads version {_VERSION}."
            )
        differences = _differences(run["identity"], self._identity)
        if differences:
            raise ValueError(
                f"the checkpoint of step {step} in {self._folder} belongs to another model or tokenizer: "
                f"{'; '.join(differences)}. Restore the old settings, or use another folder."
            )
        return run


def abstract(tree: PyTree) -> PyTree:
    """What `restore` wants to know of arrays: shapes, dtypes and shardings."""
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding), tree)


def _json_copy(name: str, values: Mapping[str, Any]) -> Any:
    """A copy, since the run goes on changing its state while a thread writes it."""
    try:
        return json.loads(json.dumps(values))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the {name} of a checkpoint must be JSON values: {error}.") from error


def _differences(saved: Any, wanted: Any, name: str = "") -> list[str]:
    """Every leaf in which two JSON trees differ, by its path."""
    if isinstance(saved, Mapping) and isinstance(wanted, Mapping):
        keys = [*saved, *(key for key in wanted if key not in saved)]
        pairs = [(saved.get(key), wanted.get(key), f"{name}.{key}".lstrip(".")) for key in keys]
        return [difference for pair in pairs for difference in _differences(*pair)]
    return [] if saved == wanted else [f"{name} was {saved!r} and is {wanted!r} now"]

"""Resume: where a run stands in, a checkpoint out; and back, so that the run goes on as if it had never stopped."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentjax.checkpoint import Checkpoint
from agentjax.learn.learner import Learner, TrainState
from agentjax.models.decoder import Params
from agentjax.rollout.pending import PendingGroup
from agentjax.session import Session

Phase = Literal["sft", "grpo"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run stands between two updates.

    Attributes:
        phase: The phase to go on with.
        step: Updates done in it.
        state: What updates change.
        reference: Frozen parameters that the policy is held near, if the objective asks for them.
        tasks: State of the task stream.
        next_group: Number of the next group.
        pending: Groups begun and not yet learnt from.
        success: Held-out success when it was last measured.
    """

    phase: Phase
    step: int
    state: TrainState
    reference: Params | None = None
    tasks: Mapping[str, Any] | None = None
    next_group: int = 0
    pending: Sequence[PendingGroup] = ()
    success: float = 0.0


def save(session: Session, position: Position) -> None:
    """Save a position; returns when the arrays are copied. A position already saved is left as it is."""
    number = checkpoint_number(session, position.phase, position.step)
    if number == session.checkpoints.latest():
        return
    session.checkpoints.save(
        number,
        Checkpoint(
            params=position.state.params,
            opt_state=_rest(position.state, position.reference),
            data={"tasks": position.tasks},
            meta={
                "phase": position.phase,
                "step": position.step,
                "next_group": position.next_group,
                "success": position.success,
                "monitor": session.monitor.state(),
            },
            pending=position.pending,
        ),
    )


def latest_phase(session: Session) -> Phase | None:
    """The phase of the newest checkpoint, None if the run starts from the beginning."""
    number = session.checkpoints.latest() if session.config.checkpoint.resume else None
    return None if number is None else session.checkpoints.meta(number)["phase"]


def load(session: Session, learner: Learner, *, with_reference: bool) -> Position:
    """Read the newest checkpoint, arrays in the learner's layout, and put the monitor back to it.

    Raises:
        ValueError: If `sft.steps` is no longer what the run had.
    """
    number = session.checkpoints.latest()
    assert number is not None
    _check_sft_steps(session, number)
    wanted = learner.abstract_state
    reference = wanted.params if with_reference else None
    saved = session.checkpoints.restore(number, params=wanted.params, opt_state=_rest(wanted, reference))
    session.monitor.restore(saved.meta["monitor"])
    rest: Any = saved.opt_state
    return Position(
        phase=saved.meta["phase"],
        step=saved.meta["step"],
        state=TrainState(params=saved.params, step=rest["step"], opt_state=rest["opt_state"], skipped=rest["skipped"]),
        reference=rest.get("reference"),
        tasks=saved.data["tasks"],
        next_group=saved.meta["next_group"],
        pending=saved.pending,
        success=saved.meta["success"],
    )


def _check_sft_steps(session: Session, number: int) -> None:
    meta, steps = session.checkpoints.meta(number), session.config.sft.steps
    done = number - meta["step"] if meta["phase"] == "grpo" else number
    if done > steps or (meta["phase"] == "grpo" and done < steps):
        raise ValueError(
            f"sft.steps is {steps}, but the run in {session.config.run_dir} has had {done} updates of SFT: give it that "
            f"number, another run_dir, or checkpoint.resume=false to start anew."
        )


def checkpoint_number(session: Session, phase: Phase, step: int) -> int:
    """Checkpoints count the updates of both phases."""
    return step if phase == "sft" else session.config.sft.steps + step


def _rest(state: TrainState, reference: Params | None) -> dict[str, Any]:
    rest = {"step": state.step, "opt_state": state.opt_state, "skipped": state.skipped}
    return rest if reference is None else rest | {"reference": reference}

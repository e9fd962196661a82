"""Board: what is known of a run at one moment, for a view to draw."""

import dataclasses
from collections.abc import Mapping

from agentjax.monitor import names
from agentjax.trajectory import Trajectory

PHASES = {"sft": "SFT", "grpo": "GRPO"}
_RECENT = 20  # steps whose durations give the time left
_HISTORY = 400  # rewards kept for the spark line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Board:
    """A moment of a run. Boards are replaced, never changed, so that another thread may draw one.

    Attributes:
        name: The run.
        totals: Steps of each phase.
        players: Share of the demonstrations by player.
        phase: "sft", "grpo", or "" before the first step.
        step: Updates done in the phase.
        metrics: Of the last step.
        losses: Of the steps of this phase, oldest first.
        rewards: Mean sampled reward of the steps, oldest first.
        successes: Held-out greedy success of each evaluation, oldest first.
        step_s: Wall seconds of the last steps of this phase.
        elapsed_s: Wall seconds of the run, earlier sessions included.
        status: What is being done, between steps.
        sample: A trajectory of the last step that gave one.
    """

    name: str
    totals: Mapping[str, int]
    players: Mapping[str, float] = dataclasses.field(default_factory=dict)
    phase: str = ""
    step: int = 0
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    losses: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()
    successes: tuple[float, ...] = ()
    step_s: tuple[float, ...] = ()
    elapsed_s: float = 0.0
    status: str = ""
    sample: Trajectory | None = None

    @property
    def total(self) -> int:
        """Steps of the phase."""
        return self.totals.get(self.phase, 0)

    @property
    def eta_s(self) -> float | None:
        """Wall seconds left in the phase, at the pace of its last steps; None before there is a pace."""
        if not self.step_s:
            return None
        return (self.total - self.step) * sum(self.step_s) / len(self.step_s)

    @property
    def story(self) -> str:
        """One sentence on what the policy is doing, told by the numbers."""
        if self.phase == "sft":
            shares = ", ".join(f"{name} {share:.0%}" for name, share in self.players.items())
            return "Cold start: it imitates scripted players" + (f" ({shares})." if shares else ".")
        use, with_tool = self.metrics.get(names.TOOL_USE), self.metrics.get(names.REWARD_WITH_TOOL)
        without = self.metrics.get(names.REWARD_WITHOUT_TOOL)
        if not use:  # an environment without tools, or a policy that never tried one
            return ""
        parts = [f"{use:.0%} of episodes call a tool" + ("" if with_tool is None else f" and earn {with_tool:.2f}")]
        parts += [] if without is None else [f"the rest guess and earn {without:.2f}"]
        return "; ".join(parts) + "."

    def after_step(
        self, phase: str, step: int, metrics: Mapping[str, float], sample: Trajectory | None, *, seconds: float
    ) -> "Board":
        """The board after an update that took so many wall seconds."""
        same = phase == self.phase
        reward = (metrics[names.REWARD],) if names.REWARD in metrics else ()
        loss = (metrics[names.LOSS],) if names.LOSS in metrics else ()
        return dataclasses.replace(
            self,
            phase=phase,
            step=step,
            metrics=metrics,
            losses=((self.losses if same else ()) + loss)[-_HISTORY:],
            rewards=(self.rewards + reward)[-_HISTORY:],
            step_s=((self.step_s if same else ()) + (seconds,))[-_RECENT:],
            sample=sample or self.sample,
            status="",
        )


def time_split(metrics: Mapping[str, float]) -> dict[str, float]:
    """Wall seconds of each part of a step, those it has, in a fixed order."""
    keys = {part: f"time/{part}_s" for part in names.TIME_SPLIT}
    return {part: metrics[key] for part, key in keys.items() if metrics.get(key, 0.0) > 0}

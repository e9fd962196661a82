"""Returns: the rewards of steps and a late score in, the return of the episode out."""

import math
from collections.abc import Mapping
from typing import Any

from agentjax.envs.api import EnvError, Score, Step
from agentjax.rollout.env_calls import env_to_blame, fault_of


class Return:
    """What one episode earned. Rewards, parts and metrics of the steps add up; a late score replaces rewards and parts.

    Attributes:
        reward: The return so far; 0 if no reward was given.
        parts: Its named components.
        metrics: Named numbers the environment reported.
        error: The last error that does not void the reward, or the last mistake of the policy.
    """

    def __init__(self) -> None:
        self.reward = 0.0
        self.parts: dict[str, float] = {}
        self.metrics: dict[str, float] = {}
        self.error: str | None = None

    def add(self, step: Step) -> float | None:
        """Take in a step.

        Returns:
            Its reward, None if it gave none.

        Raises:
            Fault: If the step reports a fault or has numbers that are none.
        """
        self._note(step.error)
        with env_to_blame("rewards"):
            reward = None if step.reward is None else _finite(step.reward)
            _add(self.parts, step.parts)
            _add(self.metrics, step.metrics)
        self.reward += reward or 0.0
        return reward

    def settle(self, score: Score | None) -> None:
        """Take in the late score; where it is void, the rewards of the steps stand.

        Raises:
            Fault: If the score reports a fault or has numbers that are none.
        """
        if score is None:
            return
        self._note(score.error)
        if score.error is not None:
            return
        with env_to_blame("score"):
            self.reward, self.parts = _finite(score.reward), {}
            _add(self.parts, score.parts)
            _add(self.metrics, score.metrics)

    def _note(self, error: EnvError | None) -> None:
        if error is not None and error.mask:
            raise fault_of(error)
        if error is not None:
            self.error = f"{error.kind}: {error.detail}"


def _finite(reward: Any) -> float:
    if not math.isfinite(value := float(reward)):
        raise ValueError(f"a reward of {reward!r}")
    return value


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0.0) + float(value)

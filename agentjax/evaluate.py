"""Evaluation: a policy and held-out tasks in, success out: greedy, and pass@k over samples."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentjax.config import Config
from agentjax.envs.api import Task
from agentjax.envs.tasks import first_tasks
from agentjax.learn.learner import Learner
from agentjax.learn.objectives import sft_objective
from agentjax.models.decoder import Params
from agentjax.monitor import episode_metrics
from agentjax.resume import checkpoint_number
from agentjax.rollout.groups import Group
from agentjax.rollout.request import SamplingParams
from agentjax.session import Session

_EVAL_SEED = 0x5EED  # held-out samples never share a draw with training


def main(config: Config, *, step: int | None = None) -> dict[str, Any]:
    """`agentjax eval`: success of a checkpoint.

    Args:
        config: The run's config.
        step: GRPO step of the checkpoint; the newest if None.

    Raises:
        ValueError: If there is no such checkpoint.
    """
    with Session(config, read_only=True) as session:
        number = session.checkpoints.latest() if step is None else checkpoint_number(session, "grpo", step)
        if number is None:
            raise ValueError(f"{config.run_dir} has no checkpoint: train first.")
        learner = Learner(
            model=config.model,
            mesh=session.mesh,
            objective=sft_objective(),
            optimizer=config.optimizer,
            config=config.learner,
        )
        params = session.checkpoints.restore_params(number, learner.abstract_state.params)
        return {"checkpoint": number, **evaluate(session, params)}


def evaluate(session: Session, params: Params) -> dict[str, float]:
    """Play the held-out tasks.

    Returns:
        `eval/success` and the other episode metrics of the greedy policy as `eval/<name>`; with `eval.samples`,
        `eval/pass_at_<k>` at the temperature of the rollout.
    """
    config = session.config
    tasks = first_tasks(session.env.source, "eval", config.eval.tasks, seed=config.seed, budget=config.budget)
    greedy = _play(session, params, tasks, samples=1, sampling=SamplingParams(temperature=0.0))
    rows = [row for group in greedy for row in group.trajectories]
    metrics = {f"eval/{name.replace('/', '_')}": value for name, value in episode_metrics(rows).items()}
    metrics["eval/success"] = float(np.mean([_successes(group) for group in greedy]))
    if config.eval.samples:
        sampled = _play(session, params, tasks, samples=config.eval.samples, sampling=config.rollout.sampling)
        counts = [_successes(group) for group in sampled]
        for k in sorted({1, config.eval.k}):
            metrics[f"eval/pass_at_{k}"] = float(np.mean([pass_at_k(config.eval.samples, c, k) for c in counts]))
    return metrics


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that one of k samples succeeds, estimated without bias from c successes in n samples.

        1 - C(n - c, k) / C(n, k)

    Source: Codex (arXiv:2107.03374), equation 1.

    Raises:
        ValueError: Unless 1 <= k <= n and 0 <= c <= n.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass_at_k needs 1 <= k <= n and 0 <= c <= n, got n={n}, c={c}, k={k}.")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _play(
    session: Session, params: Params, tasks: Sequence[Task], *, samples: int, sampling: SamplingParams
) -> tuple[Group, ...]:
    with session.rollouts(sampling=sampling, seed=session.config.seed ^ _EVAL_SEED) as phase:
        for task in tasks:
            phase.submit(task, samples)
        groups = phase.wait(len(tasks), params)
        assert groups is not None
        return groups


def _successes(group: Group) -> int:
    """Samples that solved the task: a return of 1 or more. A fault is no success."""
    last = {row.sample_index: row for row in group.trajectories}
    return sum(row.reward is not None and row.reward >= 1 for row in last.values())

"""SFT: demonstrations of scripted players in, a policy that acts like their mixture out. The cold start of a run."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from agentjax import resume
from agentjax.config import Config
from agentjax.demonstrations import demonstration_rows, play_demonstrations
from agentjax.learn.divergence import stop_if_diverged, was_skipped
from agentjax.learn.learner import Learner
from agentjax.learn.objectives import sft_objective
from agentjax.learn.packing import pack
from agentjax.models import decoder
from agentjax.resume import Position
from agentjax.session import Session
from agentjax.trajectory import Trajectory


def main(config: Config) -> int:
    """`agentjax sft`: the cold start alone, saved when done or stopped; `agentjax train` goes on from it."""
    from agentjax.evaluate import evaluate

    with Session(config) as session:
        if resume.latest_phase(session) == "grpo":
            print(f"{config.run_dir} has had its SFT; `agentjax train` goes on from there.")
            return 0
        position = run_sft(session)
        if position is None:
            session.monitor.close()
            print(f"Stopped and saved in {config.run_dir}; the same command goes on.")
        else:
            resume.save(session, position)
            session.monitor.evaluation(0, evaluate(session, position.state.params))
            session.monitor.summary(compiles_after_warmup=0, ended="SFT done")
    return 0


def run_sft(session: Session) -> Position | None:
    """Train on demonstrations, from the beginning or from where the run was stopped.

    Returns:
        The position after the last update, or None if somebody asked to stop; then the position is saved.

    Raises:
        ValueError: If a demonstration is longer than the budget allows.
        Diverged: If learning has gone wrong.
    """
    config = session.config
    learner = Learner(
        model=config.model,
        mesh=session.mesh,
        objective=sft_objective(),
        optimizer=config.sft.optimizer,
        config=config.learner,
    )
    if resume.latest_phase(session) == "sft":
        position = resume.load(session, learner, with_reference=False)
    else:
        params = jax.jit(lambda key: decoder.init_params(config.model, key))(jax.random.key(config.seed))
        position = Position(phase="sft", step=0, state=learner.init(params))
    if position.step >= config.sft.steps:
        return position
    session.monitor.status("playing demonstrations")
    played = play_demonstrations(session.env, config, session.host, count=config.sft.demonstrations)
    state = position.state
    shape = config.learner.shape(trajectories=config.sft.batch_size, max_tokens=config.budget.total_tokens)
    rows = demonstration_rows(played, session.fmt)
    _check_lengths(rows, config)
    for step in range(position.step + 1, config.sft.steps + 1):
        if session.interrupts.requested:
            resume.save(session, Position(phase="sft", step=step - 1, state=state))
            return None
        batch = sft_batch(rows, step, config)
        state, metrics = learner.step(state, [pack(batch, [1.0] * len(batch), shape=shape)])
        session.monitor.step("sft", step, metrics)
        if notice := was_skipped(metrics):
            session.monitor.notice(notice)
        stop_if_diverged(metrics, max_skipped=config.learner.max_skipped)
    return Position(phase="sft", step=config.sft.steps, state=state)


def _check_lengths(rows: Sequence[Trajectory], config: Config) -> None:
    longest = max(len(row.tokens) for row in rows)
    if longest > config.budget.total_tokens:
        raise ValueError(
            f"a demonstration has {longest} tokens, and budget.total_tokens={config.budget.total_tokens} allows no "
            f"such episode: raise it (and learner.row_length={config.learner.row_length} with it)."
        )


def sft_batch(rows: Sequence[Trajectory], step: int, config: Config) -> list[Trajectory]:
    """The rows of an update: a pass through all demonstrations in an order of its own, then the next."""
    size = config.sft.batch_size
    first = (step - 1) * size
    return [rows[_shuffled(len(rows), config.seed, i // len(rows))[i % len(rows)]] for i in range(first, first + size)]


@functools.lru_cache(maxsize=2)
def _shuffled(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, 2, epoch]).permutation(count)

"""Training: an experiment in, a policy that does better out: SFT on demonstrations, then GRPO over whole trajectories."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from agentjax import resume
from agentjax.config import Config
from agentjax.envs.tasks import task_stream
from agentjax.evaluate import evaluate
from agentjax.learn.advantages import ADVANTAGES
from agentjax.learn.divergence import stop_if_diverged, stop_if_mismatched, was_skipped
from agentjax.learn.learner import Learner
from agentjax.learn.objectives import grpo_objective
from agentjax.learn.packing import PackedBatch, PackShape, pack
from agentjax.monitor import PhaseClock, episode_metrics
from agentjax.resume import Position
from agentjax.rollout.groups import Group
from agentjax.rollout.meter import Meter
from agentjax.rollout.metrics import rollout_metrics
from agentjax.rollout.pending import PendingGroup
from agentjax.rollout.progress import InFlight
from agentjax.session import Session
from agentjax.sft import run_sft
from agentjax.trajectory import Segment, Trajectory
from agentjax.trajectory_file import check, write_trajectories


def main(config: Config) -> int:
    """`agentjax train`: both phases, from the beginning or from where the run was stopped.

    Returns:
        0, also when somebody asked to stop: then the position is saved, and the same command goes on.
    """
    with Session(config) as session:
        ended = run(session)
        session.checkpoints.wait()
        if session.interrupts.requested:
            session.monitor.close()
            print(f"Stopped and saved in {config.run_dir}; the same command goes on.")
        else:
            session.monitor.summary(compiles_after_warmup=session.compiles_after_warmup, ended=ended)
    return 0


def run(session: Session) -> str:
    """SFT if it is not done, then GRPO; why it ended."""
    if resume.latest_phase(session) != "grpo":
        cold_start = run_sft(session)
        if cold_start is None:
            return "stopped"
        learner = make_learner(session)
        position = start_grpo(session, learner, cold_start.state.params)
    else:
        learner = make_learner(session)
        position = resume.load(session, learner, with_reference=session.config.algo.kl_coef > 0)
    return GRPO(session, learner, position).run()


def make_learner(session: Session) -> Learner:
    """The learner of the GRPO phase."""
    config = session.config
    return Learner(
        model=config.model,
        mesh=session.mesh,
        objective=grpo_objective(config.algo),
        optimizer=config.optimizer,
        config=config.learner,
        temperature=config.rollout.temperature,
    )


def start_grpo(session: Session, learner: Learner, params) -> Position:
    """The position before the first GRPO update: the policy is its own reference. It is evaluated and saved."""
    state = learner.init(params)
    reference = learner.place(params) if session.config.algo.kl_coef > 0 else None
    session.monitor.status("evaluating the cold start")
    metrics = evaluate(session, state.params)
    session.monitor.evaluation(0, metrics)
    position = Position(phase="grpo", step=0, state=state, reference=reference, success=metrics["eval/success"])
    resume.save(session, position)
    return position


class GRPO:
    """The GRPO loop: sample groups, learn from those whose rewards differ, evaluate, save."""

    def __init__(self, session: Session, learner: Learner, position: Position):
        """Stand at a position.

        Args:
            session: The run.
            learner: Updates the policy.
            position: Where to go on.
        """
        config = session.config
        self._session = session
        self._config = config
        self._learner = learner
        self._step, self._state, self._reference = position.step, position.state, position.reference
        self._shape = config.learner.shape(
            trajectories=config.train.prompts_per_step * config.algo.group_size, max_tokens=config.budget.total_tokens
        )
        self._tasks = task_stream(session.env.source, "train", seed=config.seed, budget=config.budget)
        if position.tasks is not None:
            self._tasks.set_state(dict(position.tasks))
        self._pending = (position.next_group, position.pending)
        self._clock = PhaseClock()
        self._success = position.success

    def run(self) -> str:
        """Update until all steps are done, the target is reached, or somebody asks to stop; which of them it was."""
        train, session = self._config.train, self._session
        session.engine.new_weights(int(self._state.step))
        with session.rollouts(sampling=self._config.rollout.sampling, seed=self._config.seed) as self._phase:
            self._phase.resume(*self._pending)
            while self._step < train.steps and not self._reached_target:
                if not self._update():
                    return "stopped"
        return f"held-out success reached {train.target:g}" if self._reached_target else "all steps done"

    @property
    def _reached_target(self) -> bool:
        target = self._config.train.target
        return target is not None and self._success >= target

    def _update(self) -> bool:
        """One step; False if it was interrupted, and the position before it is saved."""
        groups, measured = self._sample()
        if groups is None:
            self._save(self._step)
            return False
        rows = [row for group in groups for row in group.trajectories]
        on_policy = sampled_by(self._session.engine.version, rows)
        metrics = self._learn(groups)
        metrics |= episode_metrics(rows) | rollout_metrics(rows) | measured | self._clock.lap()
        self._step += 1
        self._session.monitor.step("grpo", self._step, metrics, sample=_most_telling(rows))
        if notice := was_skipped(metrics):
            self._session.monitor.notice(notice)
        stop_if_diverged(metrics, max_skipped=self._config.learner.max_skipped)
        if on_policy:  # older weights disagree with the trainer rightly
            stop_if_mismatched(metrics, budget=self._config.rollout.mismatch_budget)
        self._keep(rows)
        self._evaluate_and_save()
        self._session.warmed_up()
        return True

    def _sample(self) -> tuple[Sequence[Group] | None, dict[str, float]]:
        """The groups of this step, and how fast they came."""
        session, count = self._session, self._config.train.prompts_per_step
        while self._phase.open < count + self._config.rollout.in_flight_groups:
            self._phase.submit(next(self._tasks), self._config.algo.group_size)
        meter = Meter(session.engine)
        groups = self._phase.wait(count, self._state.params, interrupted=lambda: session.interrupts.requested)
        self._clock.add(meter.seconds())
        return groups, meter.metrics()

    def _learn(self, groups: Sequence[Group]) -> dict[str, float]:
        """Update the policy on the groups whose rewards differ."""
        rows, advantages = credit(groups, self._config)
        metrics = {"learn/trajectories": float(len(rows)), "optim/skipped": 0.0}
        if rows:
            represented = sum(len(group.trajectories) for group in groups)
            batches = pack_minibatches(rows, advantages, self._config, self._shape, represented)
            with self._clock.phase("train"):
                self._state, learnt = self._learner.step(self._state, batches, self._reference)
            metrics |= learnt
        if int(self._state.step) != self._session.engine.version:
            self._session.engine.new_weights(int(self._state.step))
        return metrics

    def _keep(self, rows: Sequence[Trajectory]) -> None:
        if self._session.monitor.keeps_trajectories(self._step):
            path = self._session.monitor.folder.trajectories_of("grpo", self._step)
            write_trajectories(path, rows, {"step": self._step, "fingerprint": self._session.fingerprint})

    def _evaluate_and_save(self) -> None:
        train, last = self._config.train, self._step == self._config.train.steps
        if last or (train.eval_every and self._step % train.eval_every == 0):
            with self._clock.phase("eval"):
                metrics = evaluate(self._session, self._state.params)
            self._success = metrics["eval/success"]
            self._session.monitor.evaluation(self._step, metrics)
            last = last or self._reached_target
        sound = int(self._state.skipped) == 0  # else the checkpoint before it is the last good one
        if last or (sound and self._config.checkpoint.every and self._step % self._config.checkpoint.every == 0):
            with self._clock.phase("save"):
                self._save(self._step)

    def _save(self, step: int) -> None:
        version = int(self._state.step)
        resume.save(
            self._session,
            Position(
                phase="grpo",
                step=step,
                state=self._state,
                reference=self._reference,
                tasks=self._tasks.get_state(),
                next_group=self._phase.next_group,
                pending=[without_replayable(group, version) for group in self._phase.pending()],
                success=self._success,
            ),
        )


def credit(groups: Sequence[Group], config: Config) -> tuple[list[Trajectory], list[float]]:
    """The rows worth training on, checked, and their advantages.

    Faults have no reward, count in no baseline and are left out; so are groups of equal rewards, which teach nothing.
    All branches of an episode share its advantage.
    """
    size = config.algo.group_size
    rewards, valid = np.zeros((len(groups), size)), np.zeros((len(groups), size), bool)
    for p, group in enumerate(groups):
        for row in group.trajectories:
            valid[p, row.sample_index] = row.reward is not None
            rewards[p, row.sample_index] = row.reward or 0.0
    advantages = ADVANTAGES[config.algo.advantage](rewards, valid)
    rows, credits = [], []
    for p, group in enumerate(groups):
        for row in group.trajectories:
            if row.reward is not None and advantages[p, row.sample_index] != 0:
                check(row, row_length=config.learner.row_length)
                rows.append(row)
                credits.append(float(advantages[p, row.sample_index]))
    return rows, credits


def pack_minibatches(
    rows: Sequence[Trajectory], advantages: Sequence[float], config: Config, shape: PackShape, represented: int
) -> list[PackedBatch]:
    """The batches of a step, one an update: rows dealt round, so that each holds some of every group."""
    count = min(config.algo.minibatches, len(rows))
    return [
        pack(rows[i::count], advantages[i::count], shape=shape, represented=represented / count) for i in range(count)
    ]


def sampled_by(version: int, rows: Sequence[Trajectory]) -> bool:
    """Whether every sampled token of the rows came from the weights of this version."""
    return _all_from(version, (segment for row in rows for segment in row.segments))


def _all_from(version: int, segments: Iterable[Segment]) -> bool:
    return all((s.policy_versions == version).all() for s in segments if s.policy_versions is not None)


def without_replayable(group: PendingGroup, version: int) -> PendingGroup:
    """The group with episodes that the present weights sampled from the start put back to it.

    Sampled again they come out the same, to the last bit. An episode that crossed an update cannot, and is kept.
    """

    def put_back(progress: InFlight) -> InFlight:
        partial = () if progress.partial is None else (progress.partial,)
        if _all_from(version, (*progress.segments, *partial)):
            return dataclasses.replace(progress, segments=(), partial=None)
        return progress

    return dataclasses.replace(group, in_flight=tuple(map(put_back, group.in_flight)))


def _most_telling(rows: Sequence[Trajectory]) -> Trajectory | None:
    """A trajectory to show: one that was rewarded and used a tool, if there is one."""
    played = [row for row in rows if row.reward is not None]
    return max(played, key=lambda row: (row.reward, any(turn.tools for turn in row.turns)), default=None)

"""Episodes: an environment, a chat format and a sampler in, trajectories out. One coroutine an episode."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from agentjax.chat.format import ChatFormat, ParsedTurn, message_text
from agentjax.envs.api import Action, Env, Message, Step, Task, ToolCall, ToolResult
from agentjax.rollout.conversation import Branch, Conversation
from agentjax.rollout.env_calls import EnvCalls, Fault, env_to_blame
from agentjax.rollout.progress import InFlight, Tape
from agentjax.rollout.request import SampledTurn, Sampler, SamplingParams, TurnRequest
from agentjax.rollout.returns import Return
from agentjax.trajectory import Segment, Source, StopReason, ToolUse, Trajectory, Turn

MAX_BAD_CALLS = 3  # turns in a row with a malformed call that end an episode


async def run_episode(
    env: Env,
    task: Task,
    fmt: ChatFormat,
    sampler: Sampler,
    *,
    group_id: str,
    sample_index: int,
    seed: int,
    sampling: SamplingParams,
    fingerprint: str,
    recorded: Sequence[Segment] = (),
) -> tuple[Trajectory, ...]:
    """Play one episode, as `Episode` does.

    Args:
        env: A new environment; it is closed in any case.
        task: What to play.
        fmt: Between messages and ids.
        sampler: The policy.
        group_id: Group the trajectory is compared in.
        sample_index: Position within the group.
        seed: Sampling seed, a uint32.
        sampling: How tokens are drawn.
        fingerprint: Identifies model and config.
        recorded: Segments of the same episode from before a restart.

    Returns:
        One row per branch of the history.

    Raises:
        Diverged: If the environment no longer answers as recorded.
    """
    progress = InFlight(
        task_id=task.id, group_id=group_id, sample_index=sample_index, seed=seed, segments=tuple(recorded)
    )
    return await Episode(lambda: env, task, fmt, sampler, progress, sampling=sampling, fingerprint=fingerprint).run()


class Episode:
    """One episode: reset, then turns until the end, then score, then close.

    `total_tokens` holds for each stream, every other budget for the episode. A stream ends with the policy's last turn:
    a last observation is in the record of the turn alone.

    Attributes:
        fault: What ended the episode, if the infrastructure did.
        waiting: The request the sampler is busy with.
    """

    def __init__(
        self,
        make_env: Callable[[], Env],
        task: Task,
        fmt: ChatFormat,
        sampler: Sampler,
        progress: InFlight,
        *,
        sampling: SamplingParams,
        fingerprint: str,
    ):
        """Prepare to play.

        Args:
            make_env: Gives a new environment; it is closed in any case.
            task: What to play.
            fmt: Between messages and ids.
            sampler: The policy.
            progress: Who the episode is, and how far it came before a restart: recorded turns are taken from there
                as long as the environment answers as it had.
            sampling: How tokens are drawn.
            fingerprint: Identifies model and config.
        """
        self.fault: Fault | None = None
        self.waiting: TurnRequest | None = None
        self._task = task
        self._fmt = fmt
        self._sampler = sampler
        self._progress = progress
        self._tape = Tape(progress.segments, progress.partial)
        self._sampling = sampling
        self._fingerprint = fingerprint
        self._calls = EnvCalls(make_env, task.budget)
        self._talk = Conversation(fmt, task.budget, progress.seed, self._tape)
        self._stop_strings: tuple[str, ...] = ()
        self._player = "agent"
        self._partial: Segment | None = None
        self._turns = 0
        self._bad_calls = 0
        self._return = Return()

    async def run(self) -> tuple[Trajectory, ...]:
        """Play to the end.

        Returns:
            One row per branch, all with the reward of the episode, which is None if the infrastructure failed.

        Raises:
            Diverged: If the environment no longer answers as recorded.
        """
        try:
            stop = await self._play()
            self._return.settle(await self._calls.score())
        except Fault as fault:
            self.fault = fault
        finally:
            await self._close()
        if self.fault is not None:
            return self._rows(self.fault.stop, None, self.fault.detail)
        return self._rows(stop, self._return.reward, self._return.error)

    def in_flight(self) -> InFlight:
        """How far the episode came, which is the record it was given until it has caught up with it."""
        if not self._tape.done:
            return self._progress
        segments = tuple(segment for branch in self._talk.branches for segment in branch.segments)
        return dataclasses.replace(self._progress, segments=segments, partial=self._partial)

    async def _play(self) -> StopReason:
        reset = await self._calls.reset(self._task)
        self._stop_strings, self._player = reset.stop, reset.next_player
        self._talk.begin(reset.messages, reset.tools)
        while True:
            turn = self._replayed() or await self._sampled()
            step = await self._answer(turn)
            stop = self._end(step, turn)
            if stop is not None:
                return stop
            if not self._talk.observe(step):
                return StopReason.MAX_TOKENS

    def _replayed(self) -> SampledTurn | None:
        """The recorded turn, with the end it must have had."""
        recorded = self._tape.turn()
        if recorded is None:
            return None
        ended = recorded.ids[-1] in self._fmt.stop_ids
        full = len(recorded.ids) == self._talk.room
        stop: Literal["stop_id", "stop_string", "length"] = "stop_id" if ended else "length" if full else "stop_string"
        return SampledTurn(recorded.ids, *_knowledge(recorded), stop, None, seconds=0.0)

    async def _sampled(self) -> SampledTurn:
        self._partial = self._tape.partial()
        turn = await self._ask()
        while turn.stop == "abort":  # interrupted: go on from its tokens
            self._partial = _policy_segment(turn)
            turn = await self._ask()
        self._partial = None
        return turn

    async def _ask(self) -> SampledTurn:
        self.waiting = self._request()
        turn = await self._sampler.sample(self.waiting)
        self.waiting = None
        return turn

    def _request(self) -> TurnRequest:
        branch = self._talk.branches[-1]
        begun = self._partial or _NOTHING
        logprobs, versions = _knowledge(begun)
        return TurnRequest(
            trajectory=branch.seed,
            group=self._progress.group_id,
            ids=branch.ids,
            max_tokens=self._talk.room,
            stop_ids=tuple(self._fmt.stop_ids),
            stop_strings=self._stop_strings,
            **dataclasses.asdict(self._sampling),
            sampled=tuple(begun.ids.tolist()),
            sampled_logprobs=tuple(logprobs.tolist()),
            sampled_versions=tuple(versions.tolist()),
        )

    async def _answer(self, turn: SampledTurn) -> Step:
        """The environment's answer to a turn, or ours where its calls cannot be read."""
        self._turns += 1
        parsed = self._fmt.parse(turn.ids)
        action = self._action(turn, parsed)
        sample = self._decode(turn.ids)
        said = sample if parsed.error else parsed.text
        message = Message("assistant", said, action.tool_calls, reasoning=None if parsed.error else parsed.reasoning)
        self._talk.say(_policy_segment(turn), message, _turn_record(turn, sample, parsed, action))
        self._bad_calls = self._bad_calls + 1 if parsed.error else 0
        step = self._talk.cut(self._refuse(parsed.error) if parsed.error else await self._step(action))
        self._amend(observation="\n".join(message_text(message.content) for message in step.messages))
        return step

    def _decode(self, ids: np.ndarray) -> str:
        """What was sampled, as text without the stop token."""
        return self._fmt.tokenizer.decode((ids[:-1] if ids[-1] in self._fmt.stop_ids else ids).tolist())

    def _action(self, turn: SampledTurn, parsed: ParsedTurn) -> Action:
        calls = tuple(
            ToolCall(f"call_{self._turns}_{index}", call.name, call.arguments)
            for index, call in enumerate(parsed.tool_calls)
        )
        return Action(
            text=parsed.text,
            token_ids=turn.ids.tolist(),
            logprobs=turn.logprobs.tolist(),
            tool_calls=calls,
            finish="length" if turn.stop == "length" else "tool_calls" if calls else "stop",
            policy_version=int(turn.policy_versions[-1]),
            player=self._player,
        )

    def _refuse(self, error: str) -> Step:
        """The observation after a malformed call, which is the policy's own error."""
        self._return.error = f"malformed turn: {error}"
        return Step((Message("tool", f"error: {error}. Nothing was run."),), None, terminated=False)

    async def _step(self, action: Action) -> Step:
        before = self._calls.seconds
        step = await self._calls.step(action)
        self._amend(tool_s=self._calls.seconds - before)
        with env_to_blame("tool results"):
            self._amend(tools=tuple(map(_tool_use, step.tool_results)))
        self._amend(reward=self._return.add(step))
        self._player = step.next_player
        return step

    def _amend(self, **changes: Any) -> None:
        """Complete the record of the last turn."""
        turns = self._talk.branches[-1].turns
        turns[-1] = dataclasses.replace(turns[-1], **changes)

    def _end(self, step: Step, turn: SampledTurn) -> StopReason | None:
        """Why the episode ends after this step; None if it goes on."""
        if step.terminated or step.error is not None:
            return StopReason.MAX_TOKENS if turn.stop == "length" else StopReason.DONE
        if self._bad_calls >= MAX_BAD_CALLS:
            return StopReason.BAD_CALLS
        if step.truncated or self._turns >= self._task.budget.max_turns:
            return StopReason.MAX_TURNS
        return None

    async def _close(self) -> None:
        if await self._calls.close() is not None:
            self._return.metrics["close_failed"] = 1.0

    def _rows(self, stop: StopReason, reward: float | None, error: str | None) -> tuple[Trajectory, ...]:
        branches = self._talk.branches or [Branch(self._progress.seed, [Segment(Source.PROMPT, _NOTHING.ids)])]
        return tuple(
            Trajectory(
                task_id=self._progress.task_id,
                group_id=self._progress.group_id,
                sample_index=self._progress.sample_index,
                seed=branch.seed,
                segments=tuple(branch.segments),
                turns=tuple(branch.turns),
                reward=reward,
                stop=stop,
                branch=index,
                reward_parts=self._return.parts,
                error=error,
                metrics=self._return.metrics,
                fingerprint=self._fingerprint,
            )
            for index, branch in enumerate(branches)
        )


def _policy_segment(turn: SampledTurn) -> Segment:
    return Segment(Source.POLICY, turn.ids, turn.logprobs, turn.policy_versions)


_NOTHING = Segment(Source.POLICY, np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))


def _knowledge(segment: Segment) -> tuple[np.ndarray, np.ndarray]:
    """What the sampler knew of each token."""
    if segment.logprobs is None or segment.policy_versions is None:
        raise ValueError("a recorded policy segment lacks its logprobs or policy versions.")
    return segment.logprobs, segment.policy_versions


def _turn_record(turn: SampledTurn, sample: str, parsed: ParsedTurn, action: Action) -> Turn:
    return Turn(
        text=sample,
        reasoning=parsed.reasoning,
        tools=(),
        parse_error=parsed.error,
        observation="",
        finish=action.finish,
        reward=None,
        model_s=turn.seconds,
        tool_s=0.0,
    )


def _tool_use(result: ToolResult) -> ToolUse:
    return ToolUse(result.call.name, result.call.arguments, result.ok, result.content, result.seconds)

"""The environment API: tasks and sampled actions in, messages and rewards out.

An environment takes one of two shapes. A *step* environment (`Env`) answers each sampled turn, and the runner owns the
loop. An *agent* environment (`AgentEnv`) is a loop of somebody else's that calls the policy through a model endpoint.
One instance plays one episode.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from agentjax.envs.sandbox.api import Sandbox


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the policy is told about it.

    Attributes:
        name: What a call must say.
        description: What the tool does, for the policy to read.
        parameters: JSON schema of the arguments, of type "object".
        timeout_s: Wall seconds one call may take.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    timeout_s: float = 30.0


@dataclass(frozen=True)
class ToolCall:
    """A call the policy made.

    Attributes:
        id: Names the call within its message; the tool's answer repeats it.
        name: Tool the policy named, which may not exist.
        arguments: Raw text as sampled. It may not be JSON: a parse error is data.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ToolResult:
    """How one tool call went.

    Attributes:
        call: The call, as sampled.
        ok: Whether the tool ran and returned normally.
        content: What the policy is shown.
        seconds: Wall time of the call.
    """

    call: ToolCall
    ok: bool
    content: str
    seconds: float


@dataclass(frozen=True)
class Message:
    """One message of a chat.

    Attributes:
        role: Who speaks.
        content: Text, or typed parts ({"type": "text", "text": ...}); None for a message of tool calls alone.
        tool_calls: Assistant only: the calls, in order.
        tool_call_id: Tool only: the call this message answers.
        reasoning: Assistant only: text inside think tags.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | Sequence[Mapping[str, Any]] | None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True)
class Budget:
    """What one episode may spend. The runner enforces it; the environment is told.

    Attributes:
        max_turns: Sampled messages in an episode.
        turn_tokens: Sampled tokens in one turn, the stop token included.
        total_tokens: Tokens of the whole trajectory: prompt, sampled and observed.
        obs_tokens: Tokens of the observation after one turn; a longer one is cut and says so.
        step_s: Wall seconds of one `reset` or `step`.
        episode_s: Wall seconds of `reset` and all steps together; waiting for the policy does not count.
        score_s: Wall seconds of `score`.

    Raises:
        ValueError: If a number is not positive and finite, or a turn may be longer than the trajectory.
    """

    max_turns: int = 8
    turn_tokens: int = 256
    total_tokens: int = 2048
    obs_tokens: int = 256
    step_s: float = 30.0
    episode_s: float = 300.0
    score_s: float = 30.0

    def __post_init__(self):
        for name in ("max_turns", "turn_tokens", "total_tokens", "obs_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"budget.{name} must be a whole number >= 1, got {value!r}.")
        for name in ("step_s", "episode_s", "score_s"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"budget.{name} must be a finite number of seconds > 0, got {value!r}.")
        if self.turn_tokens > self.total_tokens:
            raise ValueError(
                f"budget.turn_tokens ({self.turn_tokens}) must not exceed budget.total_tokens ({self.total_tokens})."
            )


@dataclass(frozen=True)
class Task:
    """One problem to play.

    Attributes:
        id: Names the task within its environment.
        group: Samples that are compared with each other share it. Same group and seed: same start state.
        seed: Seeds everything random in the environment.
        data: What the environment needs to set the problem and to check the answer; JSON values.
        budget: What the episode may spend.
    """

    id: str
    group: str
    seed: int
    data: Mapping[str, Any]
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True)
class Action:
    """One sampled turn, token exact.

    Attributes:
        text: What was said outside tool calls and think tags.
        token_ids: The sampled ids, stop token included.
        logprobs: Sampler log-probability of each id.
        tool_calls: The calls found in the turn.
        finish: Why sampling ended.
        policy_version: Updates the sampling weights had seen at the last token.
        player: Who acts, in games of several players.
    """

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    tool_calls: tuple[ToolCall, ...]
    finish: Literal["stop", "length", "tool_calls", "abort"]
    policy_version: int
    player: str = "agent"


@dataclass(frozen=True)
class Reset:
    """The start of an episode.

    Attributes:
        messages: The prompt.
        tools: Tools the policy may call.
        stop: Strings that end a turn.
        seed_honored: Whether the start state follows from group and seed; None if unknown.
        next_player: Who moves first.
        info: Facts for the record; JSON values.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    stop: tuple[str, ...] = ()
    seed_honored: bool | None = None
    next_player: str = "agent"
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvError:
    """A fault of the environment or its infrastructure, never of the policy.

    Attributes:
        kind: What failed.
        detail: What happened, for people.
        retryable: Whether playing the task again may work.
        mask: Whether to leave the trajectory out of the baseline and the loss.
    """

    kind: Literal["timeout", "tool", "scorer", "sandbox", "capacity", "bug"]
    detail: str
    retryable: bool
    mask: bool


class EnvFault(Exception):
    """Raised by an environment or a tool to say that the infrastructure is at fault, not the policy.

    Attributes:
        error: The fault.
    """

    def __init__(self, error: EnvError):
        super().__init__(f"{error.kind}: {error.detail}")
        self.error = error


@dataclass(frozen=True)
class Step:
    """The environment's answer to one action.

    Attributes:
        messages: The observation. At the end nobody answers it: it is for the record alone.
        reward: Reward of this turn; None means none yet.
        terminated: Whether the task is over by its own rules.
        truncated: Whether the environment ended it at `budget.max_turns`.
        parts: Named components of the reward of this turn.
        metrics: Named numbers of this turn; the runner adds them up over the episode.
        ephemeral: So many messages at the end are shown to the next turn alone, and leave the history after it.
        rewritten: Whether `messages` are the whole history, edited, which begins a new token branch.
        next_player: Who moves next.
        error: A fault, which ends the episode without a reward.
        tool_results: How each tool call of the action went, in order.
    """

    messages: tuple[Message, ...]
    reward: float | None
    terminated: bool
    truncated: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    ephemeral: int = 0
    rewritten: bool = False
    next_player: str = "agent"
    error: EnvError | None = None
    tool_results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True)
class Score:
    """A late reward: from a verifier, a judge or hidden tests.

    Attributes:
        reward: The return of the episode; replaces the rewards of its steps.
        parts: Named components of the reward.
        metrics: Named numbers for the record.
        error: A fault of the scorer; the reward is then void.
    """

    reward: float
    parts: Mapping[str, float]
    metrics: Mapping[str, float]
    error: EnvError | None = None


@dataclass(frozen=True)
class EnvSpec:
    """What an environment promises.

    Attributes:
        id: Its name in the registry.
        version: Changes whenever prompts or rewards change.
        mode: "step" (`Env`) or "agent" (`AgentEnv`).
        sync: Whether its methods block, so that the runner must move them off the event loop.
        concurrency: Instances that may live at once in one process; 0 means as many as wanted.
        seeds: "exact" (the seed decides everything), "global_rng" (shared with other instances) or "none".
        snapshot: Whether `snapshot` and `restore` work.
        players: Who acts.
        needs: What it cannot run without: "sandbox", "docker", "net".
    """

    id: str
    version: str
    mode: Literal["step", "agent"]
    sync: bool
    concurrency: int
    seeds: Literal["exact", "global_rng", "none"]
    snapshot: bool = False
    players: tuple[str, ...] = ("agent",)
    needs: frozenset[str] = frozenset()


class TaskSource(Protocol):
    """Tasks addressed by index. The same split, index and seed always give the same task."""

    def size(self, split: str) -> int | None:
        """Number of tasks in a split; None means infinitely many."""
        ...

    def task(self, split: str, index: int, seed: int) -> Task:
        """The task at an index."""
        ...


@runtime_checkable
class Env(Protocol):
    """A step environment; the runner owns the loop: reset, then step until the end, then score, then close."""

    spec: EnvSpec

    async def reset(self, task: Task) -> Reset:
        """Begins the episode. Raises `EnvFault` when the infrastructure fails."""
        ...

    async def step(self, action: Action) -> Step:
        """Answers one sampled turn. Nothing a policy says makes it raise.

        Raises:
            RuntimeError: Before `reset`, or after the end.
        """
        ...

    async def score(self) -> Score | None:
        """The late reward, once the episode ended; None if the steps gave it."""
        ...

    async def snapshot(self) -> bytes | None:
        """The state of the episode, for branching and resume; None if unsupported."""
        ...

    async def restore(self, state: bytes) -> None:
        """Puts the episode into a state that `snapshot` gave."""
        ...

    async def close(self) -> None:
        """Frees everything. May be called again, and after a failed reset."""
        ...


class Player(Protocol):
    """A scripted policy, for demonstrations played through the real environment. Its seed decides all it does."""

    def act(self, observation_messages: Sequence[Message]) -> Message:
        """The next assistant message, given the messages that came since the player's last one."""
        ...


@dataclass(frozen=True)
class Turn:
    """What the policy endpoint records of one model call.

    Attributes:
        id: Names the call.
        parent: The call whose ids this one extends, if any.
        prompt_ids: Ids the model was given.
        completion_ids: Ids it sampled.
        logprobs: Sampler log-probability of each sampled id.
        loss_mask: 1 where a completion id is trained.
        policy_version: Updates the sampling weights had seen.
        finish: Why sampling ended.
        request: The request as it came.
    """

    id: str
    parent: str | None
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]
    loss_mask: Sequence[int]
    policy_version: int
    finish: str
    request: Mapping[str, Any]


class PolicySession(Protocol):
    """The model endpoint of one rollout, for loops that are not ours."""

    base_url: str
    api_key: str
    model: str

    async def turns(self) -> Sequence[Turn]:
        """The calls recorded so far."""
        ...

    async def stop(self, reason: str) -> None:
        """Refuses every further call: the budget is spent, the weights are stale, or the run ends."""
        ...


class AgentEnv(Protocol):
    """A third-party loop that calls the policy through a `PolicySession`."""

    spec: EnvSpec

    async def run(self, task: Task, policy: PolicySession, sandbox: "Sandbox | None") -> Score:
        """Plays the whole episode and scores it."""
        ...

    async def close(self) -> None:
        """Frees everything. May be called again."""
        ...

"""Demonstrations: an environment, a task and a scripted player in, the transcript of the episode out."""

import dataclasses

from agentjax.envs.api import Action, Env, EnvFault, Message, Player, Step, Task, ToolSpec


@dataclasses.dataclass(frozen=True)
class Transcript:
    """One episode, as a chat.

    Attributes:
        task: What was played.
        tools: What the player could call.
        messages: The whole chat: prompt, player and environment in turn.
        steps: The environment's answers, one a player's message.
        reward: Sum of the rewards of all steps, or the late score.
    """

    task: Task
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    steps: tuple[Step, ...]
    reward: float


async def play(env: Env, task: Task, player: Player) -> Transcript:
    """Plays an episode to its end and closes the environment.

    Raises:
        EnvFault: If the environment reports a fault.
    """
    try:
        start = await env.reset(task)
        messages = list(start.messages)
        steps: list[Step] = []
        observed = start.messages
        while not steps or not (steps[-1].terminated or steps[-1].truncated):
            messages.append(player.act(observed))
            step = await env.step(action_of(messages[-1]))
            if step.error is not None:
                raise EnvFault(step.error)
            observed = step.messages
            messages += observed
            steps.append(step)
        score = await env.score()
        reward = sum(step.reward or 0.0 for step in steps) if score is None else score.reward
        return Transcript(task, start.tools, tuple(messages), tuple(steps), reward)
    finally:
        await env.close()


def action_of(message: Message) -> Action:
    """The action an assistant message amounts to; its ids are empty, since nothing was sampled."""
    text = message.content if isinstance(message.content, str) else ""
    return Action(text, (), (), message.tool_calls, "tool_calls" if message.tool_calls else "stop", policy_version=-1)

"""Metric names that the views, curves and summary read. A metric that a step lacks is shown as a dash."""

LOSS = "policy/loss"  # loss of the update, SFT or GRPO
REWARD = "reward/mean"  # mean return of the sampled episodes, faults left out
REWARD_WITH_TOOL = "reward/with_tool"  # the same over episodes that called a tool
REWARD_WITHOUT_TOOL = "reward/without_tool"  # the same over episodes that called none
EPISODES = "rollout/episodes"  # episodes of the step, faults included
TOOL_CALLS = "rollout/tool_calls"  # tool calls of the step
TOOL_CALLS_MEAN = "rollout/tool_calls_mean"  # tool calls per episode
TOOL_USE = "rollout/tool_use"  # share of episodes that called a tool
TOKENS = "rollout/tokens"  # sampled tokens of the step
TOKENS_MEAN = "rollout/tokens_mean"  # sampled tokens per episode
TOTAL_TOKENS_MEAN = "rollout/total_tokens_mean"  # tokens per episode, prompt and observations included
TURNS_MEAN = "rollout/turns_mean"  # sampled messages per episode
TOKENS_PER_S = "perf/tokens_per_s"  # sampled tokens over wall seconds of the rollout
OCCUPANCY = "perf/slot_occupancy"  # share of slots that decoded, mean over decode steps
MISMATCH = "policy/mismatch"  # mean |sampler - trainer logprob|, nats
MISMATCH_MAX = "policy/mismatch_max"  # the largest of a step, nats
SUCCESS = "eval/success"  # held-out success of the greedy policy
STEP_S = "time/step_s"  # wall seconds of the step
# Parts of the step, in wall seconds, each time/<part>_s. `exchange`: the scheduler's own work between two blocks;
# `tool_wait`: nothing could be decoded, every episode waited for a tool; `idle`: what no part claims.
TIME_SPLIT = ("decode", "prefill", "exchange", "tool_wait", "train", "eval", "save", "idle")

"""SFT, then GRPO, on a 4x4 frozen lake: a small policy that wanders learns to walk to the goal, move by move.

Hardware, time and held-out success before and after: not measured yet.

    agentjax train --config=frozen_lake
    agentjax train --config=frozen_lake --config.env.args.slippery=true
"""

from ml_collections import ConfigDict

from agentjax.config import default_config
from agentjax.envs.frozen_lake import TOKENIZER_PATTERN


def get_config() -> ConfigDict:
    """One move a turn on ice that does not slip."""
    config = default_config()

    config.env.name = "frozen_lake"
    config.env.players = {"solver": 0.2, "guesser": 0.8}
    config.chat.format = "chatml_hermes_short"
    config.budget.max_turns = 8
    config.budget.turn_tokens = 8
    config.budget.total_tokens = 384
    config.budget.obs_tokens = 48

    config.tokenizer.pattern = TOKENIZER_PATTERN
    config.tokenizer.vocab_size = config.model.vocab_size = 512
    config.model.num_layers = 3
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.num_kv_heads = 2
    config.model.head_dim = 32
    config.model.d_ff = 512
    config.model.dtype = "float32"

    config.sft.steps = 200
    config.sft.batch_size = 32
    config.sft.optimizer.name = "muon"
    config.sft.optimizer.learning_rate = 1e-3
    config.sft.optimizer.warmup_steps = 20
    config.sft.optimizer.schedule = "linear"
    config.sft.optimizer.decay_steps = 200
    config.sft.optimizer.end_fraction = 0.1

    config.train.steps = 100
    config.train.prompts_per_step = 16
    config.algo.group_size = 8
    config.optimizer.name = "muon"
    config.optimizer.learning_rate = 2e-4
    config.optimizer.warmup_steps = 5
    config.optimizer.schedule = "linear"
    config.optimizer.decay_steps = 100
    config.optimizer.end_fraction = 0.1

    config.rollout.slots = 64
    config.rollout.mismatch_budget = 1e-4  # in nats; the model computes in float32
    config.learner.row_length = 384
    config.learner.rows = 8
    return config

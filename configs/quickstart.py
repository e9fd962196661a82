"""SFT, then GRPO, on arithmetic too large to do in the head: a small policy finds out that calling Python pays.

Hardware, time and held-out success before and after: not measured yet.

    agentjax train --config=quickstart
"""

from ml_collections import ConfigDict

from agentjax.config import default_config


def get_config() -> ConfigDict:
    """The experiment behind `make quickstart`."""
    config = default_config()

    config.env.name = "python_math"
    # Most demonstrations answer off the top of the head, wrongly: GRPO has to find out which of the two habits pays.
    config.env.players = {"solver": 0.4, "guesser": 0.6}
    config.env.args = {"chain_fraction": 0.2, "operators": "+*", "min_operations": 2, "min_digits": 3}
    config.chat.format = "chatml_hermes_short"
    config.budget.max_turns = 3
    config.budget.turn_tokens = 48
    config.budget.total_tokens = 128
    config.budget.obs_tokens = 32

    config.tokenizer.vocab_size = config.model.vocab_size = 1024
    config.model.num_layers = 3
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.num_kv_heads = 2
    config.model.head_dim = 32
    config.model.d_ff = 512
    config.model.dtype = "float32"

    config.sft.steps = 400
    config.sft.batch_size = 64
    config.sft.demonstrations = 8192
    config.sft.optimizer.name = "muon"  # learns to copy in half the steps of AdamW
    config.sft.optimizer.learning_rate = 1e-3
    config.sft.optimizer.warmup_steps = 20
    config.sft.optimizer.schedule = "linear"
    config.sft.optimizer.decay_steps = 400
    config.sft.optimizer.end_fraction = 0.1

    config.train.steps = 35
    config.train.eval_every = 5
    config.train.prompts_per_step = 16
    config.algo.group_size = 16
    config.optimizer.learning_rate = 5e-4  # 1e-3 collapses for good
    config.optimizer.warmup_steps = 5
    config.optimizer.schedule = "linear"
    config.optimizer.decay_steps = 35
    config.optimizer.end_fraction = 0.1

    config.rollout.slots = 64
    config.rollout.chunk = 32
    config.rollout.mismatch_budget = 1e-4  # in nats; the model computes in float32
    config.learner.row_length = 128
    config.learner.rows = 8
    return config

"""The smallest run that has everything: a cold start, tools in a sandbox, groups whose rewards differ, checkpoints.

Two CPU cores, some seconds, most of them to load and to compile. It learns nothing of use.

    agentjax train --config=tests/tiny.py
"""

from ml_collections import ConfigDict

from agentjax.config import default_config


def get_config() -> ConfigDict:
    """The run that tests start as a command."""
    config = default_config()

    config.env.name = "tests.tiny_envs:Parity"
    config.env.players = {"solver": 0.7, "guesser": 0.3}
    config.env.args = {"chain_fraction": 0.0, "min_operations": 1, "max_operations": 1}
    config.chat.format = "chatml_hermes_short"
    config.budget.max_turns = 3
    config.budget.turn_tokens = 40
    config.budget.total_tokens = 128
    config.budget.obs_tokens = 32
    config.sandbox.sessions = 2

    config.tokenizer.transcripts = 64
    config.tokenizer.vocab_size = config.model.vocab_size = 640
    config.model.num_layers = 1
    config.model.d_model = 32
    config.model.num_heads = 2
    config.model.num_kv_heads = 1
    config.model.head_dim = 16
    config.model.d_ff = 64

    config.sft.steps = 40
    config.sft.batch_size = 8
    config.sft.demonstrations = 32
    config.sft.optimizer.learning_rate = 1e-2

    config.train.steps = 4
    config.train.eval_every = 2
    config.train.prompts_per_step = 2
    config.algo.group_size = 4
    config.algo.kl_coef = 0.05
    config.algo.minibatches = 2
    config.optimizer.learning_rate = 1e-3
    config.eval.tasks = 4
    config.eval.samples = 4
    config.eval.k = 2
    config.checkpoint.every = 1

    config.rollout.slots = 8
    config.rollout.prefill_rows = 4
    config.rollout.chunk = 16
    config.rollout.block_steps = 4
    config.rollout.mismatch_budget = 1e-4
    config.learner.row_length = 128
    config.learner.rows = 4
    config.learner.microbatches = 6  # so that tests with more samples run the same programs
    config.monitor.live = "off"
    config.monitor.tensorboard = False
    config.monitor.trajectories_every = 1
    return config

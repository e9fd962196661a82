"""Checks over several sections: every impossible combination has its message, before anything compiles."""

import pytest

from agentjax.config import describe, load, validate


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.pages=7"], "rollout.pages=7 pages of rollout.page_size=16 tokens cannot hold one trajectory of"),
        (["algo.group_size=1"], "algo.group_size must be >= 2"),
        (["env.name=python_mat"], "Did you mean 'python_math'?"),
        (["env.name=nowhere:Env"], "cannot import module 'nowhere'"),
        (["env.args.chain=1"], "env.args.chain: env 'python_math' has no such argument."),
        (["env.args.chain_fraction=2"], "env.args.chain_fraction must be within [0, 1], got 2"),
        (["env.players={'solvr': 1.0}"], "env.players.solvr: python_math has no such player. Did you mean 'solver'?"),
        (["env.players.solver=0.5"], "env.players must sum to 1, got 1.1 "),
        (["env.players={}"], "sft.steps=400 needs demonstrations"),
        (["chat.format=chatml"], "chat.format='chatml' is not one of"),
        (["sandbox.backend=bublewrap"], "Did you mean 'bubblewrap'?"),
        (["algo.advantage=grpp"], "Did you mean 'grpo'?"),
        (["algo.minibatches=1000"], "algo.minibatches (1000) must not exceed the 256 trajectories"),
        (["model.vocab_size=512"], "model.vocab_size (512) must equal tokenizer.vocab_size (1024)"),
        (["budget.total_tokens=129"], "budget.total_tokens (129) must not exceed learner.row_length (128)"),
        (["budget.turn_tokens=200"], "budget.turn_tokens (200) must not exceed budget.total_tokens (128)"),
        (["rollout.max_concurrent=8"], "rollout.max_concurrent (8) must be at least algo.group_size (16)"),
        (["rollout.prefill_rows=65"], "rollout.prefill_rows (65) must not exceed rollout.slots (64)"),
        (["rollout.temperature=-1"], "rollout.temperature must be >= 0"),
        (["rollout.mismatch_budget=nan"], "rollout.mismatch_budget must be a finite number > 0"),
        (["sft.optimizer.learning_rate=0"], "In sft.optimizer: "),
        (["eval.samples=2", "eval.k=4"], "eval.k (4) must not exceed eval.samples (2)"),
        (["train.target=95"], "train.target must be a success rate in [0, 1]"),
        (["mesh.tensor=3"], "model.num_heads (4) must be divisible by mesh.tensor (3)"),
        (["mesh.tensor=4"], "model.num_kv_heads (2) must be divisible by mesh.tensor (4)"),
        (["mesh.data=3"], "learner.rows (8) must be divisible by mesh.data x mesh.fsdp (3)"),
        (["mesh.fsdp=32", "model.d_model=144"], "model.d_model (144) must be divisible by mesh.fsdp (32)"),
        (["seed=-1"], "seed must be >= 0"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, message):
    with pytest.raises(ValueError) as raised:
        load("quickstart", overrides)
    assert message in str(raised.value)


def test_the_mesh_must_fit_the_devices():
    validate(load("quickstart", ["mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"]), device_count=8)
    with pytest.raises(ValueError, match="mesh data=2 x fsdp=1 x tensor=1 does not fit 1 devices"):
        validate(load("quickstart", ["mesh.data=2"]), device_count=1)
    with pytest.raises(ValueError, match="mesh data=-1 x fsdp=1 x tensor=2 does not fit 3 devices"):
        validate(load("quickstart", ["mesh.data=-1", "mesh.tensor=2"]), device_count=3)


def test_an_axis_that_takes_the_rest_counts_once_the_devices_are_known():
    config = load("quickstart", ["mesh.data=-1"])
    validate(config, device_count=8)
    with pytest.raises(ValueError, match=r"learner.rows \(8\) must be divisible by mesh.data x mesh.fsdp \(3\)"):
        validate(config, device_count=3)


def test_pages_just_enough_for_one_trajectory_pass():
    assert load("quickstart", ["rollout.pages=8"]).rollout.pages == 8


def test_the_description_says_what_will_run():
    text = describe(load("quickstart", ["train.target=0.97", "eval.samples=4", "eval.k=2"]))
    for part in (
        "python_math",
        "400 updates of 64",
        "solver 40%",
        "16 prompts x 16",
        "0.97",
        "pass@2",
        "runs/quickstart",
    ):
        assert part in text

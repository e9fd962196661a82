"""Config files and overrides: what is typed arrives with its type, and what cannot be is named."""

import dataclasses
import json

import pytest

from agentjax.config import Config, default_config, from_json, load, to_json
from agentjax.config.convert import known_keys, plain


@pytest.fixture
def config_file(tmp_path):
    """Writes a config file with the given lines in its get_config()."""

    def write(*lines: str, name: str = "mine"):
        file = tmp_path / f"{name}.py"
        body = "".join(f"    {line}\n" for line in lines)
        file.write_text(
            "from agentjax.config import default_config\n\n\ndef get_config():\n    config = default_config()\n"
            f"    config.sft.steps = 0\n{body}    return config\n"
        )
        return file

    return write


@pytest.mark.parametrize("name", ["quickstart", "frozen_lake"])
def test_every_bundled_config_opens_by_name(name):
    assert load(name).name == name


def test_defaults_of_the_config_dict_are_those_of_the_dataclasses(config_file):
    file_with_sft = config_file("config.sft.steps = 400", "config.env.players = {'solver': 1.0}")
    loaded, default = plain(load(file_with_sft)), plain(Config())
    assert {key for key in default if loaded[key] != default[key]} == {"name", "run_dir", "env"}
    assert sorted(key for key in known_keys(Config) if "." not in key) == sorted(default_config().keys())


def test_a_run_is_named_after_its_file_and_kept_under_its_name(config_file):
    config = load(config_file(name="lr_sweep"))
    assert (config.name, config.run_dir) == ("lr_sweep", "runs/lr_sweep")
    named = load(config_file(name="lr_sweep"), ["--config.name=other"])
    assert named.run_dir == "runs/other"


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("rollout.slots=128", 128),
        ("rollout.slots=1_28", 128),
        ("rollout.slots=1e2", 100),
        ("optimizer.learning_rate=1", 1.0),
        ("optimizer.learning_rate=3e-4", 3e-4),
        ("checkpoint.resume=false", False),
        ("checkpoint.resume=True", True),
        ("train.target=0.9", 0.9),
        ("train.target=none", None),
        ("algo.tis_cap=None", None),
        ("learner.microbatches=4", 4),
        ("rollout.driver=python", "python"),
        ("name=123", "123"),
        ("run_dir=/tmp/a=b", "/tmp/a=b"),
        ("env.args.chain_fraction=0.5", 0.5),
        ("env.args.broken_tool=True", True),
        ("env.args.broken_tool=true", True),
        ("env.players.solver=1", 1.0),
        ("env.players={'guesser': 0.5, 'solver': 0.5}", {"guesser": 0.5, "solver": 0.5}),
        ("sft.optimizer.warmup_steps=7", 7),
    ],
)
def test_an_override_arrives_with_the_type_of_its_field(config_file, override, value):
    got = load(config_file(), [f"--config.{override}"])
    for name in override.partition("=")[0].split("."):
        got = got[name] if isinstance(got, dict) else getattr(got, name)
    assert got == value and type(got) is type(value)


def test_the_last_override_wins(config_file):
    assert load(config_file(), ["--config.seed=1", "--config.seed=2"]).seed == 2


def test_a_config_survives_json(config_file):
    config = load(config_file("config.train.target = 0.5"), ["--config.env.args.chain_fraction=0.25"])
    assert from_json(to_json(config)) == config
    assert json.loads(to_json(config))["train"]["target"] == 0.5


def test_json_takes_overrides_too(config_file):
    config = from_json(to_json(load(config_file())), ["eval.samples=8", "eval.k=4"])
    assert (config.eval.samples, config.eval.k) == (8, 4)


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.slot=3", "Unknown config key 'rollout.slot'. Did you mean 'rollout.slots'?"),
        ("rolout.slots=3", "Unknown config key 'rolout.slots'. Did you mean 'rollout.slots'?"),
        ("group_size=3", "Unknown config key 'group_size'. Did you mean 'algo.group_size'?"),
        ("sft.optimiser.learning_rate=1", "Did you mean 'sft.optimizer.learning_rate'?"),
        ("seed.x=3", "Unknown config key 'seed.x'."),
        ("rollout.slots=many", "rollout.slots must be a whole number, got 'many'."),
        ("rollout.slots=1.5", "rollout.slots must be a whole number, got '1.5'."),
        ("rollout.slots=1e999", "rollout.slots must be a whole number, got '1e999'."),
        ("checkpoint.resume=maybe", "checkpoint.resume must be true or false, got 'maybe'."),
        ("train.target=soon", "train.target must be a number or None, got 'soon'."),
        ("env.players=solver", "env.players must be a mapping, got 'solver'."),
        ("env.players.solver=all", "env.players.solver must be a number, got 'all'."),
        ("rollout.driver=calback", "rollout.driver must be one of 'callback', 'python', got 'calback'. Did you mean"),
        ("rollout=3", "rollout is a section; set one of its keys: rollout.slots"),
        ("rollout.slots", "An override looks like --config.rollout.slots=128"),
    ],
)
def test_a_mistyped_override_is_named_with_what_would_be_right(config_file, override, message):
    with pytest.raises(ValueError) as raised:
        load(config_file(), [f"--config.{override}"])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        ("config.rollout.slot = 3", ["Unknown config key 'rollout.slot'. Did you mean 'rollout.slots'?"]),
        ("config.rolout.slots = 3", ["mine.py:7: config.rolout.slots = 3", "Did you mean 'rollout'?"]),
        ("config.rollout.slots = 'many'", ["mine.py:7: config.rollout.slots = 'many'", "int"]),
        ("config.algo.group_size = 1", ["algo.group_size must be >= 2 to form a group baseline, got 1."]),
        ("return 3", ["mine.py: get_config() must return a ConfigDict, got int."]),
        ("config = =", ["mine.py"]),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(config_file, line, messages):
    with pytest.raises(ValueError) as raised:
        load(config_file(line))
    for message in messages:
        assert message in str(raised.value)


def test_a_whole_number_is_no_place_for_true(config_file):
    with pytest.raises(TypeError, match=r"rollout.slots must be a whole number, got True \(bool\)"):
        load(config_file("config.rollout.slots = True"))


def test_a_file_that_is_not_there_is_compared_with_the_bundled_ones():
    with pytest.raises(ValueError, match="no config file 'quikstart'. Did you mean 'quickstart'?"):
        load("quikstart")


def test_a_file_without_get_config_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match=r"empty.py has no get_config\(\)"):
        load(tmp_path / "empty.py")

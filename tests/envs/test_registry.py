"""The registry: names and arguments are checked before anything runs."""

import sys
import types

import pytest

from agentjax.envs.episode import Episode
from agentjax.envs.frozen_lake import FrozenLake, FrozenLakeArgs
from agentjax.envs.registry import BUILT_IN, make_env
from agentjax.envs.tool_env import tool_env


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_can_be_made(name, pool):
    factory = make_env(name, sandboxes=pool)
    assert factory.spec.id == name
    assert isinstance(factory(), Episode)
    assert factory() is not factory()
    assert set(factory.players) == {"solver", "guesser"}


def test_arguments_reach_instances_and_tasks():
    factory = make_env("frozen_lake", args={"size": 3, "slippery": True})
    assert factory.args == factory().args == FrozenLakeArgs(size=3, slippery=True)
    assert len(factory.source.task("train", 0, 0).data["rows"]) == 3


def test_any_environment_is_found_by_module_and_class(monkeypatch):
    def nothing() -> None:
        """Does nothing."""

    module = types.ModuleType("somebodys_envs")
    module.Mine = tool_env(  # type: ignore[attr-defined]
        "mine", train=[{"question": "a"}], eval=[{"question": "b"}], tools=[nothing], reward=lambda outcome: 0.0
    )
    module.helper = print  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebodys_envs", module)
    assert make_env("agentjax.envs.frozen_lake:FrozenLake").env_class is FrozenLake
    assert make_env("somebodys_envs:Mine").spec.id == "mine"
    with pytest.raises(ValueError, match="has no 'Mime'. Did you mean 'Mine'"):
        make_env("somebodys_envs:Mime")
    with pytest.raises(ValueError, match="'somebodys_envs:helper' is no environment"):
        make_env("somebodys_envs:helper")


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("python_maths", {}, "no environment 'python_maths'. Did you mean 'python_math'.*frozen_lake, python_math"),
        ("no_such_module:Env", {}, "cannot import module 'no_such_module'"),
        (":Env", {}, "cannot import module ''"),
        ("frozen_lake", {"slipery": True}, "env.args.slipery: .*Did you mean 'slippery'.*moves_per_turn"),
        ("frozen_lake", {"size": "4"}, "env.args.size: '4' is not of type 'integer'"),
        ("frozen_lake", {"size": True}, "env.args.size: True is not of type 'integer'"),
        ("frozen_lake", {"size": 1}, "env.args.size must be within"),
        ("frozen_lake", {"moves_per_turn": 0}, "env.args.moves_per_turn must be >= 1"),
        ("frozen_lake", {"hole_fraction": 2.0}, "env.args.hole_fraction must be within"),
        ("python_math", {"chain_fraction": 1.5}, "env.args.chain_fraction must be within"),
        ("python_math", {"min_digits": 5}, r"env.args.min_digits \(5\)"),
        ("python_math", {"max_digits": 19}, "env.args.max_digits"),
        ("python_math", {"timeout_s": 0}, "env.args.timeout_s"),
        ("python_math", {"max_code_chars": 5}, "no single problem.*env.args.max_code_chars=5"),
        ("python_math", {"max_code_chars": 99, "chain_fraction": 0.01}, "no chain problem.*env.args.max_code_chars=99"),
    ],
)
def test_mistakes_are_named(name, args, message):
    with pytest.raises(ValueError, match=message):
        make_env(name, args=args)


def test_a_missing_sandbox_is_named_when_an_instance_needs_it():
    factory = make_env("python_math")
    assert factory.source.task("train", 0, 0).data["question"]
    with pytest.raises(ValueError, match="'python_math'.*SandboxPool"):
        factory()


def test_an_unknown_player_is_named(pool):
    with pytest.raises(ValueError, match="'python_math' has no player 'solve'. Did you mean 'solver'"):
        make_env("python_math", sandboxes=pool).player("solve", seed=0)

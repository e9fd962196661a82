"""The registry: an environment's name and arguments in, a factory of its instances, tasks and players out.

factory = make_env("python_math", args={"chain_fraction": 0.5}, sandboxes=pool)
env = factory()                     # plays one episode
stream = task_stream(factory.source, "train", seed=0)
player = factory.player("solver", seed=0)
"""

import dataclasses
import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentjax.envs.api import EnvSpec, Player, TaskSource
from agentjax.envs.episode import Episode
from agentjax.envs.tasks import SPLITS
from agentjax.envs.tools.schema import object_schema, schema_errors

BUILT_IN = {
    "frozen_lake": "agentjax.envs.frozen_lake:FrozenLake",
    "python_math": "agentjax.envs.python_math:PythonMath",
}


@dataclasses.dataclass(frozen=True)
class EnvFactory:
    """An environment with its arguments: call it for an instance, one an episode.

    Attributes:
        name: As the config names it.
        env_class: The environment.
        args: Its checked arguments, an instance of `env_class.Args`.
        source: Its tasks.
        sandboxes: The `SandboxPool` its instances use, if any.
    """

    name: str
    env_class: type[Episode]
    args: Any
    source: TaskSource
    sandboxes: Any = None

    def __call__(self) -> Episode:
        """A new instance.

        Raises:
            ValueError: If the environment needs sandboxes and there are none.
        """
        if "sandbox" in self.spec.needs and self.sandboxes is None:
            raise ValueError(f"env {self.name!r} runs code in sandboxes: give make_env a SandboxPool.")
        arguments = {field.name: getattr(self.args, field.name) for field in dataclasses.fields(self.args)}
        return self.env_class(sandboxes=self.sandboxes, **arguments)

    @property
    def spec(self) -> EnvSpec:
        """What the environment promises."""
        return self.env_class.spec

    @property
    def players(self) -> Mapping[str, Callable[..., Player]]:
        """Scripted policies by name; each is built by `players[name](seed=...)`."""
        return self.env_class.players

    def player(self, name: str, *, seed: int) -> Player:
        """A scripted policy.

        Raises:
            ValueError: If the environment has none of that name.
        """
        if name not in self.players:
            raise ValueError(f"env {self.name!r} has no player {name!r}.{_hint(name, self.players, 'Players')}")
        return self.players[name](seed=seed)


def make_env(name: str, *, args: Mapping[str, Any] | None = None, sandboxes: Any = None) -> EnvFactory:
    """Finds an environment and checks its arguments, before anything runs.

    Args:
        name: A built-in name, or "module:Class" for a subclass of `Episode` or `ToolEnv`, or what `tool_env` returned.
        args: Its arguments; the rest keep their defaults.
        sandboxes: A `SandboxPool`. Without one, tasks and players can be had, but no instance that needs it.

    Raises:
        ValueError: If there is no such environment, an argument is unknown or of the wrong type or value, or the
            arguments leave a split without tasks.
    """
    env_class = find_env(name)
    checked = env_args(env_class, args or {}, name=name)
    source = env_class.source(checked)
    for split in SPLITS:
        source.task(split, 0, 0)
    return EnvFactory(name, env_class, checked, source, sandboxes)


def find_env(name: str) -> type[Episode]:
    """The environment class of a built-in name or of "module:Class".

    Raises:
        ValueError: If there is none.
    """
    if name not in BUILT_IN and ":" not in name:
        raise ValueError(
            f"env.name: there is no environment {name!r}.{_hint(name, BUILT_IN, 'Built in')} "
            "Name your own as 'module:Class'."
        )
    module_name, _, attribute = BUILT_IN.get(name, name).partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ValueError(f"env.name: cannot import module {module_name!r} of {name!r}: {error}.") from error
    if not hasattr(module, attribute):
        classes = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Episode)]
        raise ValueError(f"env.name: module {module_name!r} has no {attribute!r}.{_hint(attribute, classes, 'It has')}")
    found = getattr(module, attribute)
    if not (isinstance(found, type) and issubclass(found, Episode)):
        raise ValueError(f"env.name: {name!r} is no environment: it must be a subclass of Episode or ToolEnv.")
    return found


def env_args(env_class: type[Episode], args: Mapping[str, Any], *, name: str) -> Any:
    """The arguments as an instance of `env_class.Args`.

    Raises:
        ValueError: If one is unknown, of the wrong type, or refused by the environment; the message names `env.args.x`.
    """
    schema = object_schema(env_class.Args, owner=f"env {name!r}")
    known = schema["properties"]
    for key in args:
        if key not in known:
            raise ValueError(f"env.args.{key}: env {name!r} has no such argument.{_hint(key, known, 'Arguments')}")
    for path, message in schema_errors(schema, dict(args)):
        raise ValueError(f"env.args{f'.{path}' if path else ''}: {message} (env {name!r}).")
    return env_class.Args(**args)


def _hint(name: str, known: Iterable[str], title: str) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    did_you_mean = f" Did you mean {close[0]!r}?" if close else ""
    return f"{did_you_mean} {title}: {', '.join(known) or 'none'}."

"""Checks over several sections: a config in, nothing or a helpful error out, before anything compiles."""

import math

from agentjax.chat.registry import CHAT_FORMATS
from agentjax.config.convert import did_you_mean
from agentjax.config.experiment import Config
from agentjax.envs.registry import find_env, make_env
from agentjax.envs.sandbox.pool import find_backend
from agentjax.sharding.mesh import MeshConfig


def validate(config: Config, *, device_count: int | None = None) -> None:
    """Check what no section can check alone.

    Args:
        config: The experiment.
        device_count: Devices of all processes. None: known sizes of the mesh alone are checked, so that no device
            is touched.

    Raises:
        ValueError: Says which keys do not go together, their values, and what would be right.
    """
    _check_names(config)
    _check_vocabulary(config)
    _check_pages(config)
    _check_learner_rows(config)
    _check_in_flight(config)
    _check_mesh(config, _mesh_sizes(config.mesh, device_count))


def _check_names(config: Config) -> None:
    if config.chat.format not in CHAT_FORMATS:
        near = did_you_mean(config.chat.format, CHAT_FORMATS)
        raise ValueError(f"chat.format={config.chat.format!r} is not one of {', '.join(sorted(CHAT_FORMATS))}.{near}")
    find_backend(config.sandbox.backend)
    make_env(config.env.name, args=config.env.args)
    players = find_env(config.env.name).players
    for name in config.env.players:
        if name not in players:
            near = did_you_mean(name, players)
            known = ", ".join(sorted(players)) or "none"
            raise ValueError(f"env.players.{name}: {config.env.name} has no such player.{near} It has: {known}.")
    if config.sft.steps and not config.env.players:
        raise ValueError(
            f"sft.steps={config.sft.steps} needs demonstrations: give shares to the players of {config.env.name} "
            f"({', '.join(sorted(players)) or 'it has none'}) in env.players, or set sft.steps=0."
        )


def _check_vocabulary(config: Config) -> None:
    if config.model.vocab_size != config.tokenizer.vocab_size:
        raise ValueError(
            f"model.vocab_size ({config.model.vocab_size}) must equal tokenizer.vocab_size "
            f"({config.tokenizer.vocab_size}): the model reads and writes the tokenizer's ids."
        )


def _check_pages(config: Config) -> None:
    rollout, longest = config.rollout, config.budget.total_tokens
    needed = math.ceil(longest / rollout.page_size)
    if rollout.pages and rollout.pages < needed:
        raise ValueError(
            f"rollout.pages={rollout.pages} pages of rollout.page_size={rollout.page_size} tokens cannot hold one "
            f"trajectory of budget.total_tokens={longest}: it takes {needed} pages. Raise rollout.pages, or set it to "
            f"0 to have it sized."
        )


def _check_learner_rows(config: Config) -> None:
    if config.budget.total_tokens > config.learner.row_length:
        raise ValueError(
            f"budget.total_tokens ({config.budget.total_tokens}) must not exceed learner.row_length "
            f"({config.learner.row_length}): a trajectory is trained in one row."
        )
    samples = config.train.prompts_per_step * config.algo.group_size
    if config.algo.minibatches > samples:
        raise ValueError(
            f"algo.minibatches ({config.algo.minibatches}) must not exceed the {samples} trajectories of an update "
            f"(train.prompts_per_step x algo.group_size)."
        )


def _check_in_flight(config: Config) -> None:
    if config.rollout.max_concurrent < config.algo.group_size:
        raise ValueError(
            f"rollout.max_concurrent ({config.rollout.max_concurrent}) must be at least algo.group_size "
            f"({config.algo.group_size}), so that a group is played side by side."
        )


def _mesh_sizes(mesh: MeshConfig, device_count: int | None) -> dict[str, int]:
    """Size of each axis, a size of -1 filled in from the devices; 1 where there are none to count."""
    sizes = {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": mesh.tensor}
    known = math.prod(size for size in sizes.values() if size > 0)
    if device_count is None:
        return {axis: max(size, 1) for axis, size in sizes.items()}
    if known > device_count or (-1 in sizes.values() and device_count % known):
        asked = " x ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise ValueError(f"mesh {asked} does not fit {device_count} devices; -1 on one axis takes all the rest.")
    return {axis: device_count // known if size == -1 else size for axis, size in sizes.items()}


def _check_mesh(config: Config, mesh: dict[str, int]) -> None:
    model = config.model
    for field in ("num_heads", "num_kv_heads", "d_ff", "vocab_size"):
        _divides(f"model.{field}", getattr(model, field), mesh, "tensor")
    _divides("model.d_model", model.d_model, mesh, "fsdp")
    _divides("learner.rows", config.learner.rows, mesh, "data", "fsdp")


def _divides(key: str, value: int, mesh: dict[str, int], *axes: str) -> None:
    shards = math.prod(mesh[axis] for axis in axes)
    if value % shards:
        names = " x ".join(f"mesh.{axis}" for axis in axes)
        raise ValueError(f"{key} ({value}) must be divisible by {names} ({shards}), which it is split over.")

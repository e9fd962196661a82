"""The learner: parameters and packed batches in, updated parameters and metrics out. One compiled program an update."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int32

from agentjax.learn.config import LearnerConfig, OptimizerConfig
from agentjax.learn.forward import packed_logprobs
from agentjax.learn.gradients import Metrics, accumulate_gradients, batch_logprobs
from agentjax.learn.metrics import merge_metrics
from agentjax.learn.objectives import Objective
from agentjax.learn.optimizers import make_optimizer, make_schedule
from agentjax.learn.packing import PackedBatch
from agentjax.models import decoder
from agentjax.models.config import ModelConfig
from agentjax.models.decoder import Params
from agentjax.sharding.rules import LEARNER_RULES, check_divisible, shardings, spec


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything an update changes.

    Attributes:
        step: Updates applied so far, which is also the version of the policy.
        params: Parameters of the policy.
        opt_state: State of the optimiser.
        skipped: Updates skipped in a row just now, for a non-finite loss or gradient.
    """

    step: Int32[Array, ""]
    params: Params
    opt_state: optax.OptState
    skipped: Int32[Array, ""]


class Learner:
    """Minimises an objective over packed batches, on any mesh.

    Parameters, optimiser state and the rows of a batch are split over it by `LEARNER_RULES`. Batches of one `PackShape`
    run the same compiled programs.
    """

    def __init__(
        self,
        *,
        model: ModelConfig,
        mesh: Mesh,
        objective: Objective,
        optimizer: OptimizerConfig,
        config: LearnerConfig,
        temperature: float = 1.0,
    ):
        """Check the layout and prepare the programs; each compiles when first called.

        Args:
            model: The decoder.
            mesh: Devices, with axes ("data", "fsdp", "tensor").
            objective: What to minimise.
            optimizer: How.
            config: Layout of an update.
            temperature: The sampler's, by which logits are divided here too.

        Raises:
            ValueError: If the rows or a parameter do not divide over the mesh, or the temperature is not positive.
        """
        _check(mesh, config, temperature)
        axes = decoder.param_axes(model)
        shapes = jax.eval_shape(functools.partial(decoder.init_params, model), jax.random.key(0))
        check_divisible(axes, shapes, mesh, LEARNER_RULES)
        self._objective = objective
        self._optimizer = make_optimizer(optimizer, axes)
        self._schedule = make_schedule(optimizer)
        self._rows_sharding = NamedSharding(mesh, PartitionSpec(None, *spec(("act_batch", "act_time"), LEARNER_RULES)))
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._params_sharding = shardings(axes, mesh, LEARNER_RULES)
        self._forward = functools.partial(
            packed_logprobs,
            model=model,
            mesh=mesh,
            remat=config.remat,
            chunk=config.logprob_chunk,
            temperature=temperature,
        )
        self.abstract_state = self._abstract_state(shapes)
        self._compile()

    def _abstract_state(self, params: Params) -> TrainState:
        """Shape, dtype and sharding of every leaf of the state: the moments lie as their parameters do."""
        state = jax.eval_shape(self._new_state, params)
        moments = jax.tree.map_with_path(self._sharding_of_moment, state.opt_state)
        everywhere: Any = self._replicated  # layouts stand where the state has arrays
        layout = TrainState(step=everywhere, params=self._params_sharding, opt_state=moments, skipped=everywhere)
        return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, layout)

    def _sharding_of_moment(self, path: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        """A moment lies as the parameter whose path ends its own; what belongs to no parameter is everywhere."""
        node: Any = None
        for start in range(len(path)):
            node = self._params_sharding
            for key in path[start:]:
                node = node.get(getattr(key, "key", None)) if isinstance(node, dict) else None
            if isinstance(node, NamedSharding):
                return node
        return self._replicated

    def _compile(self) -> None:
        """Make the programs: `init`, `update`, `gradients` and `logprobs`."""
        state = jax.tree.map(lambda x: x.sharding, self.abstract_state)
        gradients = functools.partial(accumulate_gradients, forward=self._forward, objective=self._objective)
        logprobs = functools.partial(batch_logprobs, forward=self._forward)
        self._init = jax.jit(self._new_state, out_shardings=state)
        self._update = jax.jit(self._next_state, donate_argnums=0, out_shardings=(state, self._replicated))
        self._gradients = jax.jit(gradients, out_shardings=(self._params_sharding, self._replicated))
        self._logprobs = jax.jit(logprobs, out_shardings=self._rows_sharding)

    def init(self, params: Params) -> TrainState:
        """The state before the first update. It holds a copy of `params`, because an update consumes its state."""
        return self._init(self.place(params))

    def _new_state(self, params: Params) -> TrainState:
        moments = self._optimizer.init(jax.tree.map(lambda x: x.astype(jnp.float32), params))
        return TrainState(step=jnp.int32(0), params=params, opt_state=moments, skipped=jnp.int32(0))

    def place(self, params: Params) -> Params:
        """A copy of parameters, laid out over the mesh; a reference must be placed, too."""
        return jax.tree.map(lambda x, s: jax.device_put(x, s, may_alias=False), params, self._params_sharding)

    def step(
        self, state: TrainState, batches: Sequence[PackedBatch], reference: Params | None = None
    ) -> tuple[TrainState, dict[str, float]]:
        """Learn from what one phase of sampling gave: an update on each batch, in order.

        With several batches the old logprobs of all are computed before the first update. Metrics are those of
        `update`, on the host, put together by `merge_metrics`.
        """
        if len(batches) > 1:
            batches = [self.with_old_logprobs(state.params, batch) for batch in batches]
        metrics = []
        for batch in batches:
            state, of_update = self.update(state, batch, reference)
            metrics.append(of_update)
        return state, merge_metrics(jax.device_get(metrics))

    def update(
        self, state: TrainState, batch: PackedBatch, reference: Params | None = None
    ) -> tuple[TrainState, Metrics]:
        """One optimiser update.

        A non-finite loss, gradient or result, and a batch without a trained token, change neither parameters nor
        optimiser.

        Args:
            state: Consumed: its arrays are donated to the result.
            batch: What to learn from, from `pack`.
            reference: Frozen parameters from `place`, for an objective that needs them.

        Returns:
            The next state, and the metrics of `accumulate_gradients` with
            `optim/grad_norm`: global norm of the gradients before clipping.
            `optim/lr`: learning rate of this update.
            `optim/skipped`: updates skipped in a row, this one included, for a non-finite loss or gradient.

        Raises:
            ValueError: If the objective needs a reference and there is none.
        """
        if self._objective.needs_reference and reference is None:
            raise ValueError(
                "The objective holds the policy near a reference (algo.kl_coef > 0): the learner needs its parameters."
            )
        return self._update(state, self._put(batch), reference)

    def _next_state(
        self, state: TrainState, batch: PackedBatch, reference: Params | None
    ) -> tuple[TrainState, Metrics]:
        gradients, metrics = accumulate_gradients(
            state.params, reference, state.step, batch, forward=self._forward, objective=self._objective
        )
        norm = optax.tree.norm(gradients)
        changes, opt_state = self._optimizer.update(gradients, state.opt_state, state.params)
        proposed = (optax.apply_updates(state.params, changes), opt_state)
        sizes = jnp.stack([metrics["policy/loss"], norm, optax.tree.norm(proposed[0])])
        finite = jnp.isfinite(sizes).all()
        applied = finite & (batch.tokens > 0)
        kept = jax.tree.map(functools.partial(jnp.where, applied), proposed, (state.params, state.opt_state))
        skipped = jnp.where(applied, 0, state.skipped + ~finite)
        optim = {"optim/grad_norm": norm, "optim/lr": self._schedule(state.step), "optim/skipped": skipped}
        following = TrainState(step=state.step + applied, params=kept[0], opt_state=kept[1], skipped=skipped)
        return following, metrics | {name: jnp.asarray(x, jnp.float32) for name, x in optim.items()}

    def gradients(
        self, state: TrainState, batch: PackedBatch, reference: Params | None = None
    ) -> tuple[Params, Metrics]:
        """Loss, gradients and metrics of a batch, as `accumulate_gradients` gives them, without an update."""
        return self._gradients(state.params, reference, state.step, self._put(batch))

    def with_old_logprobs(self, params: Params, batch: PackedBatch) -> PackedBatch:
        """The batch with `old_logprobs` from these parameters, to be learnt from after other updates."""
        batch = self._put(batch)
        old = self._logprobs(params, batch)
        return dataclasses.replace(batch, rows=dataclasses.replace(batch.rows, old_logprobs=old))

    def _put(self, batch: PackedBatch) -> PackedBatch:
        rows = jax.device_put(batch.rows, self._rows_sharding)
        return dataclasses.replace(jax.device_put(batch, self._replicated), rows=rows)


def _check(mesh: Mesh, config: LearnerConfig, temperature: float) -> None:
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    if config.rows % ways:
        raise ValueError(f"learner.rows={config.rows} must be divisible by mesh data x fsdp = {ways}.")
    if not temperature > 0:
        raise ValueError(
            f"The learner needs a sampling temperature > 0, got {temperature}: greedy samples have no logprobs."
        )

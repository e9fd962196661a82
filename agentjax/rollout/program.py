"""The sampling program: parameters and KV pages in, tokens out through a mailbox, in one jitted loop.

Every shard of the mesh owns its slots and pages; within a shard the weights, heads and vocabulary are split over
"tensor". The program is `shard_map`-manual over every mesh axis, because a program with callbacks must be.
The host holds all state but the KV pages, so a block is a pure function of (parameters, pages, inbox).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Int32, PRNGKeyArray

from agentjax.models import decoder
from agentjax.models.attention import paged_attention, write_pages
from agentjax.models.config import ModelConfig
from agentjax.rollout import exchange
from agentjax.rollout.sampling import draw_keys, sample
from agentjax.sharding.rules import SAMPLER_RULES, specs

SHARD_AXES = ("data", "fsdp")
Pages = Any
Params = Any


@dataclasses.dataclass(frozen=True)
class SamplingProgram:
    """The compiled-once pieces of the engine on one mesh.

    Attributes:
        model: Architecture.
        shape: Shapes, per shard.
        mesh: Mesh with axes data, fsdp and tensor.
        unroll: Unroll the layers over per-layer arrays instead of scanning stacked ones.
        scheduler_exchange: Host function `(shard, outbox) -> inbox` on NumPy arrays; never raises.
    """

    model: ModelConfig
    shape: exchange.EngineShape
    mesh: Mesh
    unroll: bool
    scheduler_exchange: Callable[[int, np.ndarray], np.ndarray]

    @property
    def shards(self) -> int:
        """Number of shards, each with slots and pages of its own."""
        return self.mesh.shape["data"] * self.mesh.shape["fsdp"]

    def make_pages(self) -> Pages:
        """Empty KV pages: keys and values `[shards, layers * pages, page_size, kv_heads, head_dim]`.

        With unrolled layers a list of such pairs, one a layer.
        """
        per_layer = 1 if self.unroll else self.model.num_layers
        slots = (self.shards, per_layer * self.shape.pages, self.shape.page_size)
        shape = (*slots, self.model.num_kv_heads, self.model.head_dim)
        make = jax.jit(
            lambda: jnp.zeros(shape, self.model.dtype), out_shardings=NamedSharding(self.mesh, self._page_spec)
        )
        pair = lambda: (make(), make())
        return [pair() for _ in range(self.model.num_layers)] if self.unroll else pair()

    @functools.cached_property
    def loop(self) -> Callable[[Params, Pages, PRNGKeyArray], Pages]:
        """`loop(params, pages, run_key) -> pages`: exchange and run blocks until the host says leave."""

        def program(params, pages, run_key):
            params, pages = self._local(params, pages)

            def step(carry):
                pages, sent, _ = carry
                buffer = self._exchange(sent)
                box = exchange.inbox(self.shape).read(buffer)
                leave = self._agree_to_leave(box)
                pages, sent = lax.cond(
                    leave, lambda p: (p, self._nothing_sent()), lambda p: self._block(params, p, box, run_key), pages
                )
                return pages, sent, leave

            carry = (pages, self._nothing_sent(), jnp.bool_(False))
            return self._global(lax.while_loop(lambda c: ~c[2], step, carry)[0])

        return self._jit(program, out_specs=self._page_specs)

    @functools.cached_property
    def block(self) -> Callable[[Params, Pages, PRNGKeyArray, Array], tuple[Pages, Array]]:
        """`block(params, pages, run_key, inboxes) -> (pages, outboxes)`: one block, the mailboxes `[shards, S, X]`."""

        def program(params, pages, run_key, inbox):
            params, pages = self._local(params, pages)
            box = exchange.inbox(self.shape).read(inbox[0])
            pages, sent = self._block(params, pages, box, run_key)
            return self._global(pages), sent[None]

        boxes = Spec(SHARD_AXES)
        return self._jit(program, out_specs=(self._page_specs, boxes), more_in_specs=(boxes,))

    # One block

    def _block(self, params: Params, pages: Pages, box: dict[str, Array], run_key: PRNGKeyArray):
        pages = _copy_pages(pages, box["copy_from"], box["copy_to"], self.shape.pages)
        pages = self._prefill(params, pages, box)
        return self._decode(params, pages, box, run_key)

    def _prefill(self, params: Params, pages: Pages, box: dict[str, Array]) -> Pages:
        """Feed one chunk of every pending slot, a fixed number of slots a pass, as many passes as are needed."""
        rows, chunk = self.shape.prefill_rows, self.shape.chunk
        order = jnp.pad(box["order"], (0, rows))
        waiting = box["rows"][0]

        def one_pass(index, pages):
            slots = lax.dynamic_slice_in_dim(order, index * rows, rows)
            listed = index * rows + jnp.arange(rows) < waiting
            lengths = jnp.where(listed, box["chunk_len"][slots], 0)
            valid = jnp.arange(chunk)[None] < lengths[:, None]
            positions = jnp.where(valid, box["chunk_start"][slots][:, None] + jnp.arange(chunk)[None], 0)
            tokens = jnp.where(valid, box["chunk"][slots], 0)
            attend = self._attend(box["page_table"][slots], positions, valid)
            return self._hidden(params, tokens, positions, attend, pages)[1]

        return lax.fori_loop(0, (waiting + rows - 1) // rows, one_pass, pages)

    def _decode(self, params: Params, pages: Pages, box: dict[str, Array], run_key: PRNGKeyArray):
        """Sample up to W tokens a slot, ending early when no slot is active."""
        slots, steps = self.shape.slots, self.shape.block_steps
        trajectories = lax.bitcast_convert_type(box["trajectory"], jnp.uint32)

        def step(carry):
            pages, i, token, position, active, budget, tokens, logprobs, count = carry
            positions = jnp.where(active, position, 0)[:, None]
            attend = self._attend(box["page_table"], positions, active[:, None])
            hidden, pages = self._hidden(params, token[:, None], positions, attend, pages)
            logits = self._logits(params, hidden[:, 0])
            keys = draw_keys(run_key, trajectories, position + 1)
            new, logprob = sample(logits, keys, box["temperature"], box["top_k"], box["top_p"])
            token = jnp.where(active, new, token)
            tokens = tokens.at[:, i].set(token)
            logprobs = logprobs.at[:, i].set(logprob)
            count, budget = count + active, budget - active
            stopped = (token[:, None] == box["stop_ids"]).any(-1) | (budget <= 0)
            return pages, i + 1, token, position + active, active & ~stopped, budget, tokens, logprobs, count

        active = box["active"] != 0
        where = (pages, jnp.int32(0), box["token"], box["position"], active, box["budget"])
        carry = (*where, jnp.zeros((slots, steps), jnp.int32), jnp.zeros((slots, steps)), jnp.zeros(slots, jnp.int32))
        more = lambda c: (c[1] < steps) & c[4].any()
        pages, _, _, _, still, _, tokens, logprobs, count = lax.while_loop(more, step, carry)
        fields = {"count": count, "stopped": active & ~still, "tokens": tokens, "logprobs": logprobs}
        return pages, exchange.outbox(self.shape).write({"ran": jnp.ones(slots, jnp.int32), **fields})

    # The model on local shards

    def _hidden(self, params, tokens, positions, attend, pages):
        return decoder.hidden_states(
            params, tokens, positions, config=self.model, attend=attend, state=pages, shard=self._tensor_shard
        )

    def _logits(self, params, hidden):
        logits = decoder.logits(params, hidden, config=self.model)
        if self.mesh.shape["tensor"] > 1:
            logits = lax.all_gather(logits, "tensor", axis=-1, tiled=True)
        return logits[:, : self.model.vocab_size]

    def _attend(self, page_table: Int32[Array, "B M"], positions, valid):
        """How the sampler attends: write the new keys and values to their pages, then read the pages so far."""

        def attend(q, k, v, layer, pages):
            keys, values = pages[layer] if self.unroll else pages
            table = page_table if self.unroll else page_table + layer * self.shape.pages
            keys = write_pages(keys, k, table, positions, valid)
            values = write_pages(values, v, table, positions, valid)
            out = paged_attention(q, keys, values, table, positions, pages_per_block=self.shape.pages_per_block)
            if not self.unroll:
                return out, (keys, values)
            return out, [*pages[:layer], (keys, values), *pages[layer + 1 :]]

        return attend

    # The mesh

    @property
    def _tensor_shard(self):
        return decoder.TensorShard("tensor") if self.mesh.shape["tensor"] > 1 else None

    @property
    def _page_spec(self) -> Spec:
        return Spec(SHARD_AXES, None, None, "tensor", None)

    @property
    def _page_specs(self):
        pair = (self._page_spec, self._page_spec)
        return [pair] * self.model.num_layers if self.unroll else pair

    def _jit(self, program, out_specs, more_in_specs=()):
        in_specs = (specs(decoder.param_axes(self.model), SAMPLER_RULES), self._page_specs, Spec(), *more_in_specs)
        mapped = jax.shard_map(program, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(mapped, donate_argnums=1)

    def _local(self, params, pages):
        params = decoder.unstack_layers(params) if self.unroll else params
        return params, jax.tree.map(lambda x: x[0], pages)

    def _global(self, pages):
        return jax.tree.map(lambda x: x[None], pages)

    def _nothing_sent(self) -> Int32[Array, "S Y"]:
        return jnp.zeros((self.shape.slots, exchange.outbox(self.shape).width), jnp.int32)

    def _exchange(self, sent: Int32[Array, "S Y"]) -> Int32[Array, "S X"]:
        """One callback per tensor group; its answer goes to the group by `psum`."""
        answer = jax.ShapeDtypeStruct((self.shape.slots, exchange.inbox(self.shape).width), jnp.int32)
        shard = lax.axis_index("data") * self.mesh.shape["fsdp"] + lax.axis_index("fsdp")
        call = lambda sent: io_callback(self.scheduler_exchange, answer, shard, sent, ordered=False)
        if self.mesh.shape["tensor"] == 1:
            return call(sent)
        leads = lax.axis_index("tensor") == 0
        received = lax.cond(leads, call, lambda _: jnp.zeros(answer.shape, answer.dtype), sent)
        return lax.psum(received, "tensor")

    def _agree_to_leave(self, box: dict[str, Array]) -> Array:
        """Leave when any shard must, or when no shard has anything to do."""
        leave, idle = box["leave"][0] != 0, box["idle"][0] != 0
        if self.mesh.size > 1:
            leave = lax.pmax(leave.astype(jnp.int32), self.mesh.axis_names) != 0
            idle = lax.pmin(idle.astype(jnp.int32), self.mesh.axis_names) != 0
        return leave | idle


def _copy_pages(pages: Pages, sources: Int32[Array, " S"], targets: Int32[Array, " S"], count: int) -> Pages:
    """Copy whole pages in every layer; all are read before any is written. A target of -1 copies nothing."""

    def copy(pool):
        layers = pool.shape[0] // count
        offsets = jnp.arange(layers)[:, None] * count
        to = jnp.where(targets[None] >= 0, targets[None] + offsets, pool.shape[0])
        return pool.at[to].set(pool[jnp.maximum(sources, 0)[None] + offsets], mode="drop")

    return lax.cond((targets >= 0).any(), lambda p: jax.tree.map(copy, p), lambda p: p, pages)

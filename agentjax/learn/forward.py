"""The learner's forward pass: packed rows in, the logprob of every token out, on any mesh."""

import dataclasses

from jax import lax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float, Int

from agentjax.learn.logprobs import TokenLogprobs, token_logprobs
from agentjax.learn.packing import Rows
from agentjax.models import decoder
from agentjax.models.attention import packed_causal_attention
from agentjax.models.config import ModelConfig
from agentjax.models.decoder import Params
from agentjax.sharding.rules import LEARNER_RULES, SAMPLER_RULES, spec


def packed_logprobs(
    params: Params,
    rows: Rows,
    *,
    model: ModelConfig,
    mesh: Mesh,
    remat: bool,
    chunk: int | None,
    temperature: float,
) -> TokenLogprobs:
    """Logprobs of packed rows: each trajectory attends to itself alone.

    Args:
        params: Parameters of the decoder.
        rows: Arrays [B, T].
        model: The decoder's config.
        mesh: Devices the rows are split over.
        remat: Whether layers are recomputed in the backward pass.
        chunk: As in `token_logprobs`.
        temperature: As in `token_logprobs`.
    """

    def attend(q, k, v, layer, state):
        return packed_causal_attention(q, k, v, rows.segment_ids, rows.positions), state

    hidden, _ = decoder.hidden_states(
        params, rows.tokens, rows.positions, config=model, attend=attend, shard=RowShard(mesh), remat=remat
    )
    return token_logprobs(params, hidden, rows.tokens, config=model, temperature=temperature, chunk=chunk)


@dataclasses.dataclass(frozen=True)
class RowShard(decoder.Whole):
    """Under `jit`: activations stay where their rows are, and weights split over "fsdp" are gathered to them.

    Left alone, the compiler may multiply with the shards and sum activations over "fsdp", many more bytes a layer.
    """

    mesh: Mesh

    def reduce(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The sum, whole for each row."""
        return self._laid_out(x, spec(("act_batch", "act_time"), LEARNER_RULES))

    def embed(self, embedding: Float[Array, "V D"], tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Look tokens up where their rows are."""
        gathered = self._laid_out(embedding, spec(("vocab", "embed"), SAMPLER_RULES))
        return self.reduce(super().embed(gathered, tokens))

    def _laid_out(self, x: Array, layout) -> Array:
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, layout))

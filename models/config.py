"""Model config: the sizes of a decoder."""

import dataclasses

DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a decoder: grouped-query attention, rotary positions, RMSNorm, SwiGLU."""

    vocab_size: int = 1024  # rows of the embedding, V
    num_layers: int = 3  # blocks, L
    d_model: int = 128  # width of the residual stream, D
    num_heads: int = 4  # query heads, N
    num_kv_heads: int = 4  # key-value heads, K; each serves num_heads / num_kv_heads query heads
    head_dim: int = 32  # width of a head, H
    d_ff: int = 512  # width of the feed-forward layer, F
    rope_theta: float = 10_000.0  # base of the rotary frequencies
    norm_eps: float = 1e-6  # added to the mean square in every RMSNorm
    qk_norm: bool = True  # RMSNorm on each query and key head, as in Qwen3
    tie_embeddings: bool = True  # the embedding is the head, too
    embedding_scale: float = 1.0  # times the embedding when tokens are looked up; sqrt(d_model) in Gemma
    dtype: str = "float32"  # of weights and activations

    def __post_init__(self):
        sizes = ("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "head_dim", "d_ff")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} must be >= 1, got {getattr(self, name)}.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model.num_heads ({self.num_heads}) must be a multiple of model.num_kv_heads ({self.num_kv_heads}): "
                "each key-value head serves as many query heads."
            )
        if self.head_dim % 2:
            raise ValueError(f"model.head_dim must be even for rotary positions, got {self.head_dim}.")
        if not self.rope_theta > 0:
            raise ValueError(f"model.rope_theta must be > 0, got {self.rope_theta}.")
        if not self.embedding_scale > 0:
            raise ValueError(f"model.embedding_scale must be > 0, got {self.embedding_scale}.")
        if not self.norm_eps > 0:
            raise ValueError(f"model.norm_eps must be > 0, got {self.norm_eps}.")
        if self.dtype not in DTYPES:
            raise ValueError(f"model.dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}.")

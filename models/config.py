import dataclasses
@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    vocab_size: int = 1024
    num_layers: int = 3
    d_model: int = 128
    num_heads: int = 4
    num_kv_heads: int = 4
    head_dim: int = 32
    d_ff: int = 512
    rope_theta: float = 1e4
    norm_eps: float = 1e-6
    qk_norm: bool = True
    tie_embeddings: bool = True
    dtype: str = "float32"

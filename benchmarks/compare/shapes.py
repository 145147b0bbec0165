"""Which models are compared? Shapes of well-known ones, from 2 M to 0.6 B parameters, with random weights."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Shape(NamedTuple):
    """Sizes of a decoder with tied embeddings.

    Attributes:
        architecture: "llama", or "qwen3", which normalises queries and keys per head.
        context: longest sequence in tokens.
        tokenizer_size: tokens that the tokenizer is trained to; ids beyond them get a text of their own.
    """

    architecture: Literal["llama", "qwen3"]
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context: int
    rope_theta: float
    tokenizer_size: int

    @property
    def num_parameters(self) -> int:
        """Weights of all matrices; the vectors of the norms are left out."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        return self.vocab_size * self.hidden_size + self.num_layers * (attention + mlp)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in a 16-bit cache."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * 2


SHAPES = {
    # What a model costs that is hardly there: the engine's own work.
    "tiny": Shape("llama", 128, 4, 4, 2, 32, 352, 8192, 2048, 1e4, 8192),
    # SmolLM2-135M.
    "small": Shape("llama", 576, 30, 9, 3, 64, 1536, 49152, 2048, 1e4, 32000),
    # Qwen3-0.6B.
    "medium": Shape("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 4096, 1e6, 32000),
}

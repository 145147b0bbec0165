"""Which models are compared? Shapes of well-known ones, from 2 M to 0.6 B parameters, with random weights."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Experts(NamedTuple):
    """MLPs of which each token passes a few.

    Attributes:
        total, chosen: of a layer, and per token.
        size: inner width.
    """

    total: int
    chosen: int
    size: int


class Shape(NamedTuple):
    """Sizes of a decoder with tied embeddings.

    Attributes:
        architecture: "llama", or "qwen3" and "qwen3_moe", which normalise queries and keys per head.
        context: longest sequence in tokens.
        tokenizer_size: tokens that the tokenizer is trained to; ids beyond them get a text of their own.
        experts: in place of the MLP of every layer; None for an MLP of intermediate_size.
    """

    architecture: Literal["llama", "qwen3", "qwen3_moe"]
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
    experts: Experts | None = None

    @property
    def num_parameters(self) -> int:
        """Weights of all matrices; the vectors of the norms are left out."""
        return self._parameters(self.experts.total if self.experts else 0)

    @property
    def num_active_parameters(self) -> int:
        """Weights that meet one token: those of the experts that it does not pass are left out."""
        return self._parameters(self.experts.chosen if self.experts else 0)

    def _parameters(self, num_experts: int) -> int:
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        if self.experts is not None:
            mlp = self.hidden_size * (3 * self.experts.size * num_experts + self.experts.total)
        return self.vocab_size * self.hidden_size + self.num_layers * (attention + mlp)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in a 16-bit cache."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * 2


def shape_of(config: dict[str, Any]) -> Shape:
    """Return the shape that a config.json describes.

    Raises:
        ValueError: its architecture is none of those.
    """
    architecture = config["model_type"]
    if architecture not in ("llama", "qwen3", "qwen3_moe"):
        raise ValueError(f"model_type {architecture!r} is neither llama, qwen3 nor qwen3_moe")
    experts = None
    if architecture == "qwen3_moe":
        names = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
        experts = Experts(*(config[name] for name in names))
    return Shape(
        architecture,
        config["hidden_size"],
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
        config["intermediate_size"],
        config["vocab_size"],
        config["max_position_embeddings"],
        config["rope_theta"],
        config["vocab_size"],
        experts,
    )


# What a comparison takes unless it names models.
USUAL_MODELS = ["tiny", "small", "medium"]
SHAPES = {
    # What a model costs that is hardly there: the engine's own work.
    "tiny": Shape("llama", 128, 4, 4, 2, 32, 352, 8192, 2048, 1e4, 8192),
    # SmolLM2-135M.
    "small": Shape("llama", 576, 30, 9, 3, 64, 1536, 49152, 2048, 1e4, 32000),
    # Qwen3-0.6B.
    "medium": Shape("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 4096, 1e6, 32000),
    # Compared with each other: as many weights meet a token in both, four times as many lie in the second.
    "dense-250m": Shape("qwen3", 1024, 24, 16, 4, 64, 2048, 32768, 2048, 1e6, 32000),
    "experts-1b": Shape("qwen3_moe", 1024, 24, 16, 4, 64, 2048, 32768, 2048, 1e6, 32000, Experts(24, 4, 512)),
}

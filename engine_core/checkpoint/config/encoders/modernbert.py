"""ModernBERT: rotary positions, norms before attention and MLP, layers whose tokens see only those nearby."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.classifier import HeadTraits
from splitserve.engine_core.checkpoint.config.common_fields import MAX_LAYERS, MAX_LEN
from splitserve.engine_core.checkpoint.config.encoders.encoder_config import (
    EncoderDefaults,
    read_encoder,
    read_gelu,
    read_sizes,
)
from splitserve.engine_core.checkpoint.config.encoders.encoder_traits import EmbeddingTraits, EncoderTraits
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.layer_ropes import read_rope_of_kind
from splitserve.engine_core.checkpoint.config.layer_windows import FULL, SLIDING, read_windows
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import RopeShape
from splitserve.engine_core.checkpoint.config.traits import MlpTraits

_DEFAULTS = EncoderDefaults(
    max_positions=8192, norm_eps_field="norm_eps", norm_eps=1e-5, activation_field="hidden_activation"
)
_EMBEDDINGS = EmbeddingTraits(
    words="embeddings.tok_embeddings", positions="", token_types="", num_token_types=0, norm="embeddings.norm"
)


def read_modernbert(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a ModernBertModel.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    if config.has("rope_scaling"):
        raise config.unwanted("rope_scaling", "rope_parameters has those of this architecture")
    sizes = read_sizes(config)
    attention_bias = config.boolean("attention_bias", False)
    traits = EncoderTraits(
        prefix="model.",
        embeddings=_EMBEDDINGS,
        layers="layers",
        attention_inputs=("attn.Wqkv",),
        attention_output="attn.Wo",
        attention_bias=attention_bias,
        attention_norm="attn_norm",
        mlp_norm="mlp_norm",
        mlp=MlpTraits(inner=("mlp.Wi",), outer="mlp.Wo", bias=config.boolean("mlp_bias", False)),
        final_norm="final_norm",
        norms_have_bias=config.boolean("norm_bias", False),
        reaches=_reaches(config, sizes.num_layers),
    )
    max_positions = config.integer("max_position_embeddings", 1, MAX_LEN, _DEFAULTS.max_positions)
    thetas = {
        FULL: config.number("global_rope_theta", 1.0, 1e15, 160000.0),
        SLIDING: config.number("local_rope_theta", 1.0, 1e15, 10000.0),
    }
    ropes = {
        kind: read_rope_of_kind(config, kind, RopeShape(sizes.head_dim, max_positions, theta))
        for kind, theta in thetas.items()
    }
    by_layer = tuple(ropes[SLIDING if reach else FULL] for reach in traits.reaches)
    return read_encoder(path, architecture, config, _DEFAULTS, traits, by_layer)


def modernbert_head(config: Fields) -> HeadTraits:
    """Read the head of a ModernBertForSequenceClassification.

    Raises:
        ModelLoadError: names the field that is not supported.
    """
    pooling = config.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise config.error("classifier_pooling", f"must be cls or mean, got {pooling!r}")
    return HeadTraits(
        pooling="cls" if pooling == "cls" else "mean",
        dense="head.dense",
        dense_bias=config.boolean("classifier_bias", False),
        activation=read_gelu(config, "classifier_activation"),
        norm="head.norm",
    )


def _reaches(config: Fields, num_layers: int) -> tuple[int, ...]:
    reach = config.integer("local_attention", 2, MAX_LEN, 128) // 2
    interval = config.integer("global_attn_every_n_layers", 1, MAX_LAYERS, 3)
    return read_windows(config, reach, lambda i: i % interval > 0, num_layers)

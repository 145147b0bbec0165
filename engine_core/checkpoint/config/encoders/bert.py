"""BERT, RoBERTa and XLM-RoBERTa: encoders with learned positions and norms behind attention and MLP."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.common_fields import MAX_VOCAB
from splitserve.engine_core.checkpoint.config.encoders.encoder_config import (
    MAX_TOKEN_TYPES,
    EncoderDefaults,
    read_encoder,
)
from splitserve.engine_core.checkpoint.config.encoders.encoder_traits import EmbeddingTraits, EncoderTraits
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig


def read_bert(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a BertModel.

    Raises:
        ModelLoadError: names the field that is missing, out of range or not supported.
    """
    return _read(path, architecture, config, "bert.", first_position=0)


def read_roberta(path: Path, architecture: str, config: Fields) -> ModelConfig:
    """Read a RobertaModel or an XLMRobertaModel: positions begin behind that of the padding token.

    Raises:
        ModelLoadError: as read_bert.
    """
    first = config.integer("pad_token_id", 0, MAX_VOCAB, 1) + 1
    return _read(path, architecture, config, "roberta.", first_position=first)


def _read(path: Path, architecture: str, config: Fields, prefix: str, first_position: int) -> ModelConfig:
    kind = config.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise config.error("position_embedding_type", f"must be 'absolute', got {kind!r}")
    num_types = config.integer("type_vocab_size", 1, MAX_TOKEN_TYPES, 2)
    embeddings = EmbeddingTraits(first_position=first_position, num_token_types=num_types)
    traits = EncoderTraits(prefix=prefix, embeddings=embeddings)
    return read_encoder(path, architecture, config, EncoderDefaults(), traits)

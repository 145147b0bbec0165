"""How the layers of an encoder differ from one family to another."""

from __future__ import annotations

import msgspec

from splitserve.engine_core.checkpoint.config.traits import MlpTraits


class EmbeddingTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What is added up for each token before the first layer, and then normalised.

    Attributes:
        words: checkpoint name of the embedding of tokens.
        positions: of that of positions; "" if these turn queries and keys instead.
        first_position: row of the position embedding that a sequence's first token has.
        token_types: of that of token types, which tell the two texts of a pair apart; "" if there is none.
        num_token_types: its rows.
        norm: of the norm.
    """

    words: str = "embeddings.word_embeddings"
    positions: str = "embeddings.position_embeddings"
    first_position: int = 0
    token_types: str = "embeddings.token_type_embeddings"
    num_token_types: int = 2
    norm: str = "embeddings.LayerNorm"


class EncoderTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker builds an encoder by; the defaults are BERT's.

    Attributes:
        prefix: of all names, which checkpoints of the bare model omit.
        embeddings: before the first layer.
        layers: checkpoint name of the list of layers; the following names are within a layer.
        attention_inputs: of the query, key and value projection.
        attention_output: of the projection back.
        attention_bias: all these projections have one.
        attention_norm, mlp_norm: of the norms of the sums behind attention and MLP. With a final norm these
            are of what attention and MLP read, and the first layer has none before its attention.
        mlp: of the MLP.
        mlp_is_silu: its activation is SiLU, not GELU.
        final_norm: of the norm behind the last layer; "" if there is none.
        norms_have_bias: all norms have one.
        reaches: per layer, how many positions to either side of its own a token sees; 0, and (): all.
    """

    prefix: str = "bert."
    embeddings: EmbeddingTraits = EmbeddingTraits()
    layers: str = "encoder.layer"
    attention_inputs: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    attention_output: str = "attention.output.dense"
    attention_bias: bool = True
    attention_norm: str = "attention.output.LayerNorm"
    mlp_norm: str = "output.LayerNorm"
    mlp: MlpTraits = MlpTraits(is_gated=False, inner=("intermediate.dense",), outer="output.dense", bias=True)
    mlp_is_silu: bool = False
    final_norm: str = ""
    norms_have_bias: bool = True
    reaches: tuple[int, ...] = ()

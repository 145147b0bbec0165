"""A layer for multi-token prediction, as DeepSeek V3 has it: a decoder layer of the model's own kind.

It reads pairs as an EAGLE-3 head does: the model's last hidden state at a position, behind its norm, and the
token behind. Embedding and output head are the model's.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import LinearSpec, RowLinear, Source
from splitserve.worker.layers.norm import RMSNorm
from splitserve.worker.layers.parameter import Part
from splitserve.worker.layers.rotary import RotaryEmbedding
from splitserve.worker.models.base import Model
from splitserve.worker.models.decoder import PREFIX, Decoder
from splitserve.worker.models.decoder_layer import DecoderLayer, Midway
from splitserve.worker.models.draft_heads.base import Vocabulary

# Of the same checkpoint: the model, whose copies of embedding and output head in this layer are not read.
IGNORED = (PREFIX, "layers.", "embed_tokens.", "norm.", "lm_head.")


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the layer with its weights declared but not allocated."""
    return MtpHead(ctx, config)


class MtpHead:
    """See the module; a HeadModel.

    Args:
        config: its draft_head is not None.
    """

    is_recordable = True
    num_layers = 1

    def __init__(self, ctx: LayerContext, config: ModelConfig) -> None:
        head, latent = config.draft_head, config.latent
        assert head is not None
        name = f"{PREFIX}{head.layer}"
        self._ops = ctx.ops
        self.workspace = ctx.workspace
        self.adapters = ctx.adapters
        self._size = size = config.hidden_size
        self._eps = config.norm_eps
        self.num_kv_heads, self.head_dim = len(ctx.heads(config).keys), config.head_dim
        self._token_norm, self._state_norm = (
            ctx.plan.declare_vector(size, [Part(f"{name}.{norm}.weight", (size,))])
            for norm in ("enorm", "hnorm")
        )
        self._join = RowLinear(ctx, "residual", Source(f"{name}.eh_proj", size), LinearSpec(2 * size))
        (rope,) = config.ropes
        rotary = None
        if rope is not None:
            turned = config.head_dim if latent is None else latent.rotary_dim
            rotary = RotaryEmbedding(ctx, rope, turned, config.max_model_len)
        self._layer = DecoderLayer(ctx, config, name, 0, rotary)
        self._norm = RMSNorm(ctx, f"{name}.shared_head.norm", size, config.norm_eps)
        self.num_params = ctx.plan.num_params
        self._model: Decoder | None = None
        self._vocabulary: Vocabulary | None = None

    def serve(self, model: Model, vocabulary: Vocabulary | None = None) -> None:
        """See HeadModel."""
        assert isinstance(model, Decoder), "its checkpoint is a decoder's"
        self._model, self._vocabulary = model, vocabulary or model

    def states(self, places: torch.Tensor) -> torch.Tensor:
        """See HeadModel."""
        return self._served.final_norm(self._served.tapped(places))

    def put(self, features: torch.Tensor) -> None:
        """See HeadModel."""
        self._features(len(features)).copy_(features)

    def forward(
        self,
        token_ids: torch.Tensor,
        meta: AttentionMetadata,
        kv_caches: Iterable[KVCache],
        outputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return what stands for the model's final hidden states [S, H] at the tokens."""
        count, size, ops = len(token_ids), self._size, self._ops
        tokens = self.workspace.take("tokens", count, size)
        ops.embedding(tokens, token_ids, self._words.embedding_weight.weight)
        pairs = self.workspace.take_spaced("pairs", count, 2 * size)
        ops.rms_norm(pairs[:, :size], tokens, self._token_norm.tensor, self._eps)
        ops.rms_norm(pairs[:, size:], self._features(count), self._state_norm.tensor, self._eps)
        (kv_cache,) = kv_caches
        midway = self._layer.attend(None, self._join(pairs), meta, kv_cache)
        if outputs is not None:
            midway = Midway(*(part[outputs] for part in midway))
        return self._norm.add(self._layer.finish(midway), midway.residual)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return fp32 logits [S, V] of what forward() returned."""
        return self._words.compute_logits(hidden)

    @property
    def _served(self) -> Decoder:
        assert self._model is not None
        return self._model

    @property
    def _words(self) -> Vocabulary:
        assert self._vocabulary is not None
        return self._vocabulary

    def _features(self, count: int) -> torch.Tensor:
        return self.workspace.take("features", count, self._size)

"""An EAGLE-3 head: one decoder layer over pairs of a token and what the model had computed in front of it.

The pair at position p is the hidden state of the model at p, of several layers fused into one, and the token
behind it, at p + 1. What the layer returns stands for the model's hidden state at p + 1, so the next pair can
be made of it and a drafted token. Keys and values of a pair lie in the slot of position p.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.base import Scores
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.attention import Attention, HeadLayout
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.embedding import HEAD
from splitserve.worker.layers.linear import ColumnLinear, LinearSpec, RowLinear, Source
from splitserve.worker.layers.mlp import GatedMLP, MlpSpec
from splitserve.worker.layers.norm import RMSNorm
from splitserve.worker.layers.parameter import PackedParameter, Part
from splitserve.worker.layers.rotary import RotaryEmbedding
from splitserve.worker.layers.weight_plan import Table
from splitserve.worker.models.base import Model
from splitserve.worker.models.decoder import Decoder
from splitserve.worker.models.draft_heads.base import Vocabulary

# Tensors that are read elsewhere or not needed: the head's vocabulary in both directions.
IGNORED = ("d2t", "t2d")


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the head with its weights declared but not allocated."""
    return Eagle3Head(ctx, config)


class Eagle3Head:
    """See the module; a HeadModel.

    Args:
        config: its draft_head is not None.
    """

    is_recordable = True
    num_layers = 1

    def __init__(self, ctx: LayerContext, config: ModelConfig) -> None:
        head = config.draft_head
        assert head is not None
        self._ops = ctx.ops
        self.workspace = ctx.workspace
        self.adapters = ctx.adapters
        self._size = size = config.hidden_size
        self._eps = config.norm_eps
        self.num_kv_heads, self.head_dim = config.num_kv_heads, config.head_dim
        self._token_ids: Table | None = None
        if head.token_ids:
            token_ids = head.token_ids
            self._token_ids = ctx.plan.declare_table(lambda: torch.tensor(token_ids, dtype=torch.int64))
        self._vocab_size = config.vocab_size
        self._goes_on_with_norm = head.goes_on_with_norm
        self._embedding: PackedParameter | None = None
        if head.has_own_embedding:
            self._embedding = ctx.plan.declare_rows("embed_tokens.weight", (config.vocab_size, size))
        fused = LinearSpec(head.read_size * len(head.read_layers), bias=head.has_fc_bias)
        self._fuse = ColumnLinear(ctx, "fused", [Source("fc", size)], fused)
        self._token_norm, self._state_norm = (
            ctx.plan.declare_vector(size, [Part(f"{head.layer}.{name}.weight", (size,))])
            for name in ("input_layernorm", "hidden_norm")
        )
        self._attention = _attention(ctx, config, f"{head.layer}.self_attn")
        self._mlp_norm = RMSNorm(ctx, f"{head.layer}.post_attention_layernorm", size, config.norm_eps)
        spec = MlpSpec(size, config.intermediate_size, bias=config.traits.mlp.bias)
        self._mlp = GatedMLP(ctx, f"{head.layer}.mlp", spec, config.activation)
        self._norm = RMSNorm(ctx, "norm", size, config.norm_eps)
        self._head: PackedParameter | None = None
        if head.has_own_head:
            shape = (len(head.token_ids) or config.vocab_size, size)
            self._head = ctx.plan.declare_head(f"{HEAD}.weight", shape)
        self.num_params = ctx.plan.num_params
        self._model: Decoder | None = None
        self._vocabulary: Vocabulary | None = None

    def serve(self, model: Model, vocabulary: Vocabulary | None = None) -> None:
        """See HeadModel."""
        assert isinstance(model, Decoder), "read_eagle3 refuses others"
        self._model, self._vocabulary = model, vocabulary or model

    def states(self, places: torch.Tensor) -> torch.Tensor:
        """See HeadModel."""
        return self._fuse(self._served.tapped(places))

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
        """Return what stands for the model's hidden states [S, H] at the tokens, see models.base.Model."""
        count, size, ops = len(token_ids), self._size, self._ops
        stream = self._features(count)
        tokens = self.workspace.take("tokens", count, size)
        ops.embedding(tokens, token_ids, self._table.weight)
        pairs = self.workspace.take_spaced("pairs", count, 2 * size)
        ops.rms_norm(pairs[:, :size], tokens, self._token_norm.tensor, self._eps)
        ops.rms_norm(pairs[:, size:], stream, self._state_norm.tensor, self._eps)
        if self._goes_on_with_norm:
            ops.rms_norm(stream, stream, self._state_norm.tensor, self._eps)
        (kv_cache,) = kv_caches
        attended = self._attention(pairs, meta, kv_cache)
        if outputs is not None:
            attended, stream = attended[outputs], stream[outputs]
        normed = self._mlp_norm.add(self._attention.project(attended), stream)
        ops.add(stream, stream, self._mlp(normed))
        return stream

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return fp32 logits [S, V] of what forward() returned; -inf for tokens that it does not know."""
        normed = self._norm(hidden)
        if self._head is None:
            return self._words.compute_logits(normed)
        count = len(hidden)
        logits = self.workspace.take("logits", count, self._head.shape[0], torch.float32)
        self._ops.linear(logits, normed, self._head.weight)
        if self._token_ids is None:
            return logits
        out = self.workspace.take("all_logits", count, self._vocab_size, torch.float32)
        return out.fill_(-torch.inf).index_copy_(1, self._token_ids.tensor, logits)

    @property
    def _table(self) -> PackedParameter:
        if self._embedding is not None:
            return self._embedding
        return self._words.embedding_weight

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


def _attention(ctx: LayerContext, config: ModelConfig, name: str) -> Attention:
    """Attention over pairs, twice as wide as what it returns."""
    traits, size = config.traits.attention, config.hidden_size
    queries, keys = (count * config.head_dim for count in (config.num_heads, config.num_kv_heads))
    sources = [
        Source(f"{name}.{part}", width)
        for part, width in zip(("q_proj", "k_proj", "v_proj"), (queries, keys, keys), strict=True)
    ]
    qkv = ColumnLinear(ctx, "qkv", sources, LinearSpec(2 * size, traits.qkv_bias))
    output = RowLinear(ctx, "delta", Source(f"{name}.o_proj", size), LinearSpec(queries, traits.output_bias))
    layout = HeadLayout(
        config.num_heads, config.num_kv_heads, config.head_dim, Scores(config.attention_scales[0])
    )
    (rope,) = config.ropes
    assert rope is not None, "a Llama turns its heads"
    rotary = RotaryEmbedding(ctx, rope, config.head_dim, config.max_model_len)
    return Attention(ctx, layout, (qkv, output), rotary)

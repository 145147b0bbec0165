"""One layer of the shared decoder, put together as the family's traits say."""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.attention import Attention, HeadLayout
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import ColumnLinear, LinearSpec, RowLinear, Source
from splitserve.worker.layers.mlp import GatedMLP, MlpSpec
from splitserve.worker.layers.norm import HeadNorms, RMSNorm
from splitserve.worker.layers.residual import BranchEnd
from splitserve.worker.layers.rotary import RotaryEmbedding
from splitserve.worker.parallel.shares import scaled


class DecoderLayer:
    """Attention and MLP; returns the delta not yet added to the residual, so the next norm can fuse it.

    Args:
        config: of the model.
        name: of the layer in the checkpoint.
        index: of the layer.
        rotary: None for a layer without.
    """

    def __init__(
        self, ctx: LayerContext, config: ModelConfig, name: str, index: int, rotary: RotaryEmbedding | None
    ) -> None:
        hidden_size, eps = config.hidden_size, config.norm_eps
        norms, mlp = config.traits.norms, config.traits.mlp
        self._end = BranchEnd(ctx, config.traits.multipliers.residual)
        self._input_norm = RMSNorm(ctx, f"{name}.{norms.before_attention}", hidden_size, eps)
        self._attention = _attention(ctx, config, f"{name}.self_attn", index, rotary)
        self._post_norm = RMSNorm(ctx, f"{name}.{norms.before_mlp}", hidden_size, eps)
        spec = MlpSpec(hidden_size, config.intermediate_size, mlp.inner, bias=mlp.bias)
        self._mlp = GatedMLP(ctx, f"{name}.mlp", spec)

    def attend(
        self, delta: torch.Tensor | None, residual: torch.Tensor, meta: AttentionMetadata, kv_cache: KVCache
    ) -> torch.Tensor:
        """The part up to and including attention, which mixes tokens."""
        normed = self._input_norm(residual) if delta is None else self._input_norm.add(delta, residual)
        return self._attention(normed, meta, kv_cache)

    def finish(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """The rest of the layer, which works on each token by itself."""
        delta = self._end(self._attention.project(attended))
        return self._end(self._mlp(self._post_norm.add(delta, residual)))


def _attention(
    ctx: LayerContext, config: ModelConfig, name: str, index: int, rotary: RotaryEmbedding | None
) -> Attention:
    traits = config.traits.attention
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    share = ctx.heads(config)
    queries, keys = scaled(share.queries, config.head_dim), scaled(share.keys, config.head_dim)
    if len(traits.inputs) == 1:
        starts = (q_size, q_size + kv_size)
        taken = (queries, *(scaled(share.keys, config.head_dim, start) for start in starts))
        sources = [Source(f"{name}.{traits.inputs[0]}", q_size + 2 * kv_size, taken)]
    else:
        parts = ((q_size, queries), (kv_size, keys), (kv_size, keys))
        sources = [
            Source(f"{name}.{part}", size, (rows,))
            for part, (size, rows) in zip(traits.inputs, parts, strict=True)
        ]
    qkv = ColumnLinear(ctx, "qkv", sources, LinearSpec(config.hidden_size, traits.qkv_bias))
    output_source = Source(f"{name}.o_proj", config.hidden_size)
    output = RowLinear(ctx, "delta", output_source, LinearSpec(q_size, traits.output_bias, inputs=queries))
    norms = None
    if traits.qk_norm == "head":
        norms = HeadNorms(ctx, (f"{name}.q_norm", f"{name}.k_norm"), config.head_dim, config.norm_eps)
    heads = HeadLayout(
        len(share.queries),
        len(share.keys),
        config.head_dim,
        config.attention_scales[index],
        config.sliding_windows[index],
    )
    return Attention(ctx, heads, (qkv, output), rotary, norms)

"""The decoder that all families but GPT-2 share; its layers differ by traits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.classifier_head import ClassifierHead
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.embedding import OutputHead, output_head, token_embedding
from splitserve.worker.layers.norm import residual_norm
from splitserve.worker.layers.parameter import PackedParameter
from splitserve.worker.layers.rotary import RotaryEmbedding
from splitserve.worker.layers.stage_boundary import StageBoundary
from splitserve.worker.models.base import Model
from splitserve.worker.models.decoder_layer import DecoderLayer, Midway, ParallelLayer
from splitserve.worker.models.draft_heads.hidden_taps import HiddenTaps

# Checkpoints of the bare model omit it.
PREFIX = "model."
EMBEDDING = f"{PREFIX}embed_tokens"


def build(ctx: LayerContext, config: ModelConfig) -> Model:
    """Return the model with its weights declared but not allocated."""
    return Decoder(ctx, config)


class Decoder:
    """Embedding, layers of rotary attention and gated MLP, final norm, output head; see models.base.Model.

    Args:
        config: sizes, and what differs between the architectures.
    """

    is_recordable = True

    def __init__(self, ctx: LayerContext, config: ModelConfig) -> None:
        # Layers with the same parameters share one table.
        turned_dim = config.head_dim if config.latent is None else config.latent.rotary_dim
        rotaries: dict[RopeConfig | None, RotaryEmbedding] = {
            rope: RotaryEmbedding(ctx, rope, turned_dim, config.max_model_len)
            for rope in dict.fromkeys(config.ropes)
            if rope is not None
        }
        self.adapters = ctx.adapters
        self._boundary = boundary = StageBoundary(ctx, config.hidden_size)
        self._held = layers = boundary.layers(config.num_layers)
        self.num_layers = len(layers)
        self.num_kv_heads = len(ctx.heads(config).keys)
        self.head_dim = config.head_dim
        self._embedding = token_embedding(ctx, config, EMBEDDING) if boundary.is_first else None
        make = ParallelLayer if config.traits.is_parallel else DecoderLayer
        self._layers = [
            make(ctx, config, f"{PREFIX}layers.{i}", i, rotaries.get(config.ropes[i])) for i in layers
        ]
        if boundary.is_last:
            self._norm = residual_norm(ctx, config, f"{PREFIX}norm")
            self._head: ClassifierHead | OutputHead
            if config.classifier is not None:
                self._head = ClassifierHead(ctx, config)
            else:
                self._head = output_head(ctx, config, EMBEDDING, self._embedding)
        self.num_params = ctx.plan.num_params
        self.workspace = ctx.workspace
        self._ops = ctx.ops
        self._samples = ctx.is_first
        self.taps: HiddenTaps | None = None

    @property
    def embedding_weight(self) -> PackedParameter:
        """The rows of the token embedding, of a model in one piece, or of its last stage with a tied head."""
        if self._embedding is not None:
            return self._embedding.weight
        assert isinstance(self._head, OutputHead), "a classifier drafts nothing"
        return self._head.weight

    def final_norm(self, states: torch.Tensor) -> torch.Tensor:
        """Return the norm of states [n, H] at the end of the last layer, in the norms' shared buffer."""
        return self._norm(states)

    def tapped(self, places: torch.Tensor) -> torch.Tensor:
        """Return what is handed out of some tokens of the last pass; see HiddenTaps.states."""
        assert self.taps is not None, "somebody asked for it"
        return self.taps.states(places)

    def tap(self, layers: Sequence[int]) -> None:
        """Hand out hidden states in front of these layers from now on; see HiddenTaps."""
        self.taps = HiddenTaps(self._ops, self.workspace, layers, self._held.start, travels=self._samples)

    def forward(
        self,
        token_ids: torch.Tensor,
        meta: AttentionMetadata,
        kv_caches: Iterable[KVCache],
        outputs: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Return final hidden states [S, H], or None; see models.base.Model.forward."""
        if self.adapters is not None:
            self.adapters.begin(meta.adapters)
        num_rows = len(meta.seq_lens)
        residual, delta = self._begin(token_ids, num_rows)
        groups, taps, end = meta.of_groups(), self.taps, self._held.stop
        # What is handed out at the end is that of all tokens.
        ending = outputs if taps is not None and self._boundary.is_last and end in taps.layers else None
        if ending is not None or not self._boundary.is_last:
            outputs = None
        for i, layer, kv_cache in zip(self._held, self._layers, kv_caches, strict=True):
            if taps is not None:
                taps.take(i, residual, delta)
            midway = layer.attend(delta, residual, groups[kv_cache.group], kv_cache)
            if layer is self._layers[-1] and outputs is not None:
                midway = Midway(*(part[outputs] for part in midway))
                if self.adapters is not None:
                    self.adapters.narrow(outputs)
            residual, delta = midway.residual, layer.finish(midway)
        assert delta is not None
        if not self._boundary.is_last:
            states = [] if taps is None else taps.departing(num_rows, len(residual), end)
            self._boundary.hand_on(residual, delta, states)
            return None
        if taps is not None:
            taps.take(end, residual, delta)
            if ending is not None:
                residual, delta = residual[ending], delta[ending]
        return self._norm.add(delta, residual)

    def _begin(self, token_ids: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the residual in front of the first layer, and what is to be added to it, if anything."""
        if self._embedding is not None:
            return self._embedding(token_ids), None
        num_states = 0 if self.taps is None else self.taps.num_arriving(num_rows)
        residual, delta, states = self._boundary.take_over_all(len(token_ids), num_states)
        if self.taps is not None:
            self.taps.arrive(states)
        return residual, delta

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return fp32 logits [S, V], or None; see models.base.Model.compute_logits."""
        return self._head(hidden)

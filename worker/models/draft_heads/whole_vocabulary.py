"""What does a head look tokens up in, where the model is sharded? An embedding and output head in one piece.

The first rank drafts alone, so it cannot use its shards of the model's vocabulary. It loads from the model's
checkpoint what the head has not got itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.engine_core.checkpoint.config.model_config import DraftHead, ModelConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.embedding import Embedding, OutputHead, output_head, token_embedding
from splitserve.worker.layers.parameter import PackedParameter
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.models.decoder import EMBEDDING, PREFIX
from splitserve.worker.models.draft_heads.mtp import IGNORED
from splitserve.worker.models.placement import Placement
from splitserve.worker.ops.quantization import FORMS
from splitserve.worker.weights.loading import Loader, Progress
from splitserve.worker.weights.tied_head import as_stored

# The model's tensors, which are not missed here, by their names in a GGUF file, too.
_IGNORED = (*IGNORED, "blk.", "output_norm.", "output.", "token_embd.")


class WholeVocabulary:
    """See the module; a Vocabulary.

    Args:
        config: of the model.
        head: that asks; it has none of what is declared here.
    """

    def __init__(self, ctx: LayerContext, config: ModelConfig, head: DraftHead) -> None:
        self._embedding: Embedding | None = None
        self._head: OutputHead | None = None
        if not head.has_own_embedding:
            self._embedding = token_embedding(ctx, config, EMBEDDING)
        if not head.has_own_head:
            self._head = output_head(ctx, config, EMBEDDING, self._embedding)

    @property
    def embedding_weight(self) -> PackedParameter:
        """See Vocabulary."""
        assert self._embedding is not None, "the head has one of its own"
        return self._embedding.weight

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """See Vocabulary."""
        assert self._head is not None, "the head has one of its own"
        return self._head(hidden)


class AskedVocabulary(NamedTuple):
    """A whole vocabulary before its weights are there.

    Attributes:
        config: of the model.
        head: that asks.
        dtype, quantization: of the model.
        placement: where the head computes, alone.
    """

    config: ModelConfig
    head: DraftHead
    dtype: torch.dtype
    quantization: str
    placement: Placement[Device]

    def declared(self) -> tuple[WholeVocabulary, WeightPlan]:
        """Declare its weights."""
        device, backend, _mesh = self.placement
        config = as_stored(self.config, EMBEDDING, PREFIX)
        plan = WeightPlan(PREFIX, _IGNORED, FORMS[self.quantization], config.quantization)
        ctx = LayerContext(plan, Workspace(self.dtype, device.torch_device), backend, device.ops)
        return WholeVocabulary(ctx, config, self.head), plan

    def load(self, progress: Progress, loader: Loader) -> WholeVocabulary:
        """Load its weights; raises as load_weights does."""
        vocabulary, plan = self.declared()
        loader(self.config.path, plan, self.dtype, self.placement.device, progress)
        return vocabulary

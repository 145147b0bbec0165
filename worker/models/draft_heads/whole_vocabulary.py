"""What does a head look tokens up in, where the model is split? An embedding and output head in one piece.

One rank drafts alone, so it cannot use shards of the model's vocabulary, and a pipeline's last stage has no
embedding but a tied one. It loads from the model's checkpoint what neither the head nor the rank has.
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
from splitserve.worker.models.draft_heads.base import Vocabulary
from splitserve.worker.models.draft_heads.mtp import IGNORED
from splitserve.worker.models.placement import Placement
from splitserve.worker.ops.quantization import FORMS
from splitserve.worker.parallel.mesh import Mesh
from splitserve.worker.weights.loading import Loader, Progress
from splitserve.worker.weights.tied_head import as_stored

# The model's tensors, which are not missed here, by their names in a GGUF file, too.
_IGNORED = (*IGNORED, "blk.", "output_norm.", "output.", "token_embd.")


class Parts(NamedTuple):
    """Which parts of a vocabulary are loaded."""

    embedding: bool
    output_head: bool


class WholeVocabulary:
    """See the module; a Vocabulary.

    Args:
        config: of the model.
        needs: what is loaded; the other part is the head's own, or the model's.
    """

    def __init__(self, ctx: LayerContext, config: ModelConfig, needs: Parts) -> None:
        self._embedding: Embedding | None = None
        self._head: OutputHead | None = None
        if needs.embedding:
            self._embedding = token_embedding(ctx, config, EMBEDDING)
        if needs.output_head:
            self._head = output_head(ctx, config, EMBEDDING, self._embedding)
        self._model: Vocabulary | None = None

    def complete(self, model: Vocabulary) -> None:
        """Let a model's part serve where this has none."""
        self._model = model

    @property
    def embedding_weight(self) -> PackedParameter:
        """See Vocabulary."""
        return self._rest.embedding_weight if self._embedding is None else self._embedding.weight

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """See Vocabulary."""
        return self._rest.compute_logits(hidden) if self._head is None else self._head(hidden)

    @property
    def _rest(self) -> Vocabulary:
        assert self._model is not None, "the head has one of its own"
        return self._model


class AskedVocabulary(NamedTuple):
    """A whole vocabulary before its weights are there.

    Attributes:
        config: of the model.
        needs: what is loaded.
        dtype, quantization: of the model.
        placement: where the head computes, alone.
    """

    config: ModelConfig
    needs: Parts
    dtype: torch.dtype
    quantization: str
    placement: Placement[Device]

    def declared(self) -> tuple[WholeVocabulary, WeightPlan]:
        """Declare its weights."""
        device, backend, _mesh = self.placement
        config = as_stored(self.config, EMBEDDING, PREFIX)
        plan = WeightPlan(PREFIX, _IGNORED, FORMS[self.quantization], config.quantization)
        ctx = LayerContext(plan, Workspace(self.dtype, device.torch_device), backend, device.ops)
        return WholeVocabulary(ctx, config, self.needs), plan

    def load(self, progress: Progress, loader: Loader) -> WholeVocabulary:
        """Load its weights; raises as load_weights does."""
        vocabulary, plan = self.declared()
        loader(self.config.path, plan, self.dtype, self.placement.device, progress)
        return vocabulary


def parts_needed(config: ModelConfig, head: DraftHead, mesh: Mesh) -> Parts:
    """Return which parts of a model's vocabulary its head lacks on the rank that samples.

    Args:
        config: of the model.
        head: that looks tokens up.
        mesh: how the model is split.
    """
    is_sharded = mesh.group is not None
    has_embedding = mesh.stage is None or as_stored(config, EMBEDDING, PREFIX).tie_word_embeddings
    return Parts(
        embedding=not head.has_own_embedding and (is_sharded or not has_embedding),
        output_head=not head.has_own_head and is_sharded,
    )

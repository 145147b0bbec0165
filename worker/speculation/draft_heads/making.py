"""How does a loaded head become a drafter, or whatever a model has? It reads what its model computes."""

from __future__ import annotations

from splitserve.worker.models.base import Model
from splitserve.worker.models.decoder import Decoder
from splitserve.worker.models.draft_heads.eagle3 import Eagle3Head
from splitserve.worker.models.draft_heads.mtp import MtpHead
from splitserve.worker.models.loaded_model import LoadedModel
from splitserve.worker.sampling.sampler import Sampler
from splitserve.worker.speculation.draft_heads.head_drafter import HeadDrafter
from splitserve.worker.speculation.draft_heads.head_passes import MAX_SMALL, HeadPasses
from splitserve.worker.speculation.draft_model.making import make_cache, make_draft_model, make_pass_graphs
from splitserve.worker.speculation.drafter import ModelDrafter


def make_model_drafter(
    loaded: LoadedModel, sampler: Sampler, num_host_blocks: int, *, records: bool
) -> ModelDrafter | None:
    """Return the drafter that a model was loaded with, None for none; see make_head_drafter."""
    draft = loaded.draft
    if draft is None:
        return None
    if draft.config.draft_head is None:
        return make_draft_model(draft, sampler, num_host_blocks, records=records)
    return make_head_drafter(draft, loaded.model, sampler, num_host_blocks, records=records)


def make_head_drafter(
    draft: LoadedModel, model: Model, sampler: Sampler, num_host_blocks: int, *, records: bool
) -> HeadDrafter:
    """Return a drafter for the sampler's batch, with a KV cache of as many blocks as the batch's.

    Args:
        draft: the head, loaded.
        model: for which it drafts.
        sampler: of the batch.
        num_host_blocks: blocks of the CPU offload tier.
        records: its passes may be recorded.

    Raises:
        ConfigError: there is no memory for the cache.
    """
    head, batch = draft.model, sampler.batch
    assert isinstance(head, Eagle3Head | MtpHead)
    if draft.vocabulary is not None:
        assert isinstance(model, Decoder), "heads draft for decoders only"
        draft.vocabulary.complete(model)
    head.serve(model, draft.vocabulary)
    caches, host_blocks = make_cache(draft, batch, num_host_blocks)
    graphs = make_pass_graphs(draft, caches, batch, MAX_SMALL) if records else None
    passes = HeadPasses(draft, head, caches, batch, graphs)
    return HeadDrafter(draft.config.family, passes, sampler, host_blocks)

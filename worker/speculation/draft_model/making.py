"""How does a loaded model become a drafter? It gets a KV cache beside that of the model it drafts for."""

from __future__ import annotations

import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_graphs import DraftedStepGraphs
from splitserve.worker.graphs.making import make_drafted_graphs, make_graphs
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.kv_cache.host_blocks import HostBlocks
from splitserve.worker.kv_cache.layout import layer_caches
from splitserve.worker.models.draft_heads.hidden_taps import MAX_READ_ROWS
from splitserve.worker.models.loaded_model import LoadedModel
from splitserve.worker.sampling.sampler import Sampler
from splitserve.worker.speculation.draft_model.draft_model import DraftModel
from splitserve.worker.speculation.draft_model.passes import MAX_SMALL, DraftPasses


def make_draft_model(
    draft: LoadedModel, sampler: Sampler, num_host_blocks: int, *, records: bool
) -> DraftModel:
    """Return a drafter for the sampler's batch, with a KV cache of as many blocks as the batch's.

    Args:
        draft: loaded.
        sampler: of the batch.
        num_host_blocks: blocks of the CPU offload tier.
        records: its passes may be recorded.

    Raises:
        ConfigError: there is no memory for the cache.
    """
    batch = sampler.batch
    caches, host_blocks = make_cache(draft, batch, num_host_blocks)
    graphs = make_pass_graphs(draft, caches, batch, MAX_SMALL) if records else None
    passes = DraftPasses(draft, caches, batch, graphs)
    return DraftModel(passes, sampler, host_blocks, draft.config.max_model_len)


def make_pass_graphs(
    draft: LoadedModel, caches: ArrivingCaches, batch: InputBatch, row_tokens: int
) -> DraftedStepGraphs | None:
    """Return graphs of passes of up to row_tokens tokens of each row; None if each has to run eagerly."""
    max_tokens = MAX_READ_ROWS * row_tokens
    plain = make_graphs(draft, caches, batch, max_tokens, max_drafts=row_tokens - 1, samples=False)
    return make_drafted_graphs(plain, draft, caches, batch)


def make_cache(
    draft: LoadedModel, batch: InputBatch, num_host_blocks: int
) -> tuple[ArrivingCaches, HostBlocks]:
    """Return a KV cache of as many blocks as the batch's, and what moves them; raises as make_draft_model."""
    device, backend, _mesh = draft.placement
    shape = draft.block_shape(batch.limits.block_size)
    try:
        pool: torch.Tensor = backend.allocate(shape, batch.limits.num_blocks)
    except (OSError, MemoryError, RuntimeError) as error:
        blocks = batch.limits.num_blocks
        raise ConfigError(f"no memory for the draft model's KV cache of {blocks} blocks: {error}") from None
    return ArrivingCaches(layer_caches(pool)), HostBlocks(device, pool, shape, num_host_blocks)

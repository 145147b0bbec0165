"""Which graphs run a model's decode steps, and its steps with drafts? It depends on where it computes."""

from __future__ import annotations

from splitserve.engine_core.config import MAX_CHEAP_ROWS
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_graphs import DraftedStepGraphs, StepGraphs
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.graphs.cuda_drafted_graphs import CudaDraftedGraphs
from splitserve.worker.graphs.cuda_graphs import CudaGraphs
from splitserve.worker.graphs.decode_graphs import DecodeGraphs
from splitserve.worker.graphs.drafted_graphs import DraftedGraphs
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.models.loaded_model import LoadedModel
from splitserve.worker.models.placement import Placement


def make_graphs(
    loaded: LoadedModel,
    caches: ArrivingCaches,
    batch: InputBatch,
    max_rows: int,
    *,
    max_drafts: int = 0,
    samples: bool = True,
) -> StepGraphs | None:
    """Return graphs of decode steps; None if each has to run eagerly.

    Args:
        loaded: the model.
        caches: one per layer.
        batch: the rows to decode.
        max_rows: most rows of a graph.
        max_drafts: most drafts of a row in a step.
        samples: their rows are sampled as those of the batch; False for graphs that only compute drafts.
    """
    device, backend, mesh = loaded.placement
    # No request of an embedding model decodes.
    if loaded.pooling is not None or not loaded.model.is_recordable:
        return None
    if mesh.stage is not None or (mesh.group is not None and not mesh.group.can_be_captured):
        return None
    # Recordings of a CPU hold our own kernels; another backend may compute with anything.
    if isinstance(backend, CpuAttention):
        return DecodeGraphs(loaded.model, caches, batch, max_rows, mesh.group)
    if isinstance(device, CudaDevice) and backend.can_be_captured:
        placement = Placement(device, backend, mesh)
        # A token of a step with drafts is a row of a graph.
        limits = batch.limits
        most_drafted = min(limits.max_num_seqs * (1 + max_drafts), MAX_CHEAP_ROWS)
        max_rows = min(max_rows, max(limits.max_num_seqs, most_drafted), limits.max_num_batched_tokens)
        return CudaGraphs(placement, loaded.model, caches, batch, max_rows, samples=samples)
    return None


def make_drafted_graphs(
    graphs: StepGraphs | None, loaded: LoadedModel, caches: ArrivingCaches, batch: InputBatch
) -> DraftedStepGraphs | None:
    """Return graphs of steps with drafts where there are `graphs` of decode steps; see make_graphs()."""
    if isinstance(graphs, CudaGraphs):
        return CudaDraftedGraphs(graphs)
    return None if graphs is None else DraftedGraphs(loaded.model, caches, batch)

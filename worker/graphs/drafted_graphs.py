"""CPU recordings of steps with drafts: one per number of rows and of tokens in all, two with adapters.

Attention reads from memory how the tokens are shared out among the rows, so a recording serves every way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.graphs.decode_graphs import MAX_GRAPH_ROWS
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.models.base import Model
from splitserve.worker.ops.decode import Recording

# Each takes some 300 bytes per kernel. One row, or a few alike, need few of them.
MAX_RECORDINGS = 128


class _DraftedGraph:
    """The forward pass of R rows with T tokens; its first run records it, later runs replay it."""

    def __init__(
        self,
        model: Model,
        kv_caches: ArrivingCaches,
        block_tables: torch.Tensor,
        window_tables: torch.Tensor | None,
        num_tokens: int,
        *,
        has_adapters: bool,
    ) -> None:
        """Record nothing yet.

        Args:
            model: see DecodeGraphs, as of the caches.
            kv_caches: one per layer.
            block_tables: int32 [R, as wide as the batch's], used by other graphs in between.
            window_tables: int32 [G, R, ...], used likewise; None without window groups.
            num_tokens: T.
            has_adapters: some tokens have one.
        """
        self._model = model
        self._kv_caches = kv_caches
        num_rows = len(block_tables)
        self._token_ids = torch.zeros(num_tokens, dtype=torch.int32)
        self._meta = AttentionMetadata(
            positions=torch.zeros(num_tokens, dtype=torch.int32),
            slot_mapping=torch.zeros(num_tokens, dtype=torch.int32),
            block_tables=block_tables,
            cu_seqlens_q=torch.zeros(num_rows + 1, dtype=torch.int32),
            seq_lens=torch.zeros(num_rows, dtype=torch.int32),
            adapters=torch.zeros(num_tokens, dtype=torch.int32) if has_adapters else None,
            window_slots=None
            if window_tables is None
            else torch.zeros(len(window_tables), num_tokens, dtype=torch.int32),
            window_tables=window_tables,
        )
        self._hidden: torch.Tensor | None = None
        self._replay: Callable[[], None] = self._record
        self.is_recorded = False

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Return the hidden states [T, H], in the model's buffer."""
        given, meta = inputs.meta, self._meta
        np.copyto(self._token_ids.numpy(), inputs.token_ids.numpy())
        np.copyto(meta.positions.numpy(), given.positions.numpy())
        np.copyto(meta.slot_mapping.numpy(), given.slot_mapping.numpy())
        np.copyto(meta.cu_seqlens_q.numpy(), given.cu_seqlens_q.numpy())
        np.copyto(meta.seq_lens.numpy(), given.seq_lens.numpy())
        if meta.adapters is not None and given.adapters is not None:
            np.copyto(meta.adapters.numpy(), given.adapters.numpy())
        tables = given.block_tables.numpy()
        meta.block_tables.numpy()[:, : tables.shape[1]] = tables
        if given.window_slots is not None and given.window_tables is not None:
            assert meta.window_slots is not None
            assert meta.window_tables is not None
            np.copyto(meta.window_slots.numpy(), given.window_slots.numpy())
            meta.window_tables.numpy()[:, :, : tables.shape[1]] = given.window_tables.numpy()
        self._replay()
        assert self._hidden is not None, "a pipeline does not draft"
        return self._hidden

    def _record(self) -> None:
        with Recording() as recording:
            self._hidden = self._model.forward(self._token_ids, self._meta, self._kv_caches)
        self._replay = recording.replay
        self.is_recorded = True


class DraftedGraphs:
    """Runs steps with drafts from recordings; single-threaded.

    As with decode steps, a step runs eagerly the first time its sizes occur and is recorded the second time,
    with tokens that have an adapter in another recording, and all are dropped when the model's buffers move.

    Attributes:
        is_at_speed: whether the last step took as long as steps of its sizes will from now on.
    """

    def __init__(self, model: Model, kv_caches: ArrivingCaches, batch: InputBatch) -> None:
        """Record nothing yet; see DecodeGraphs for what the arguments have to be."""
        self._model = model
        self._kv_caches = kv_caches
        num_rows = min(MAX_GRAPH_ROWS, batch.limits.max_num_seqs)
        table = (num_rows, batch.blocks.table.shape[1])
        self._block_tables = torch.zeros(table, dtype=torch.int32)
        self._window_tables = torch.zeros((batch.limits.num_window_groups, *table), dtype=torch.int32)
        self._graphs: dict[tuple[int, int, bool], _DraftedGraph] = {}
        self._generation = 0
        self.is_at_speed = True

    def prepare(self, inputs: StepInputs) -> bool:
        """See DraftedStepGraphs: a recording is made by the step that it is of."""
        return True

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """Run the model if every row computes its last known token and drafts; else return None.

        Returns:
            The hidden states of all tokens, [T, H], valid until the next step.
        """
        if self._generation != self._model.workspace.generation:
            self._graphs.clear()
            self._generation = self._model.workspace.generation
        self.is_at_speed = True
        num_rows, num_tokens = len(inputs.rows), len(inputs.token_ids)
        if num_tokens > MAX_GRAPH_ROWS or num_rows == 0 or not inputs.only_decodes:
            return None
        has_adapters = inputs.meta.adapters is not None
        graph = self._graphs.get((num_rows, num_tokens, has_adapters))
        if graph is not None:
            self.is_at_speed = graph.is_recorded
            return graph.forward(inputs)
        if len(self._graphs) < MAX_RECORDINGS:
            tables = self._block_tables[:num_rows]
            windows = self._window_tables[:, :num_rows] if len(self._window_tables) else None
            caches = self._kv_caches
            graph = _DraftedGraph(self._model, caches, tables, windows, num_tokens, has_adapters=has_adapters)
            self._graphs[num_rows, num_tokens, has_adapters] = graph
            self.is_at_speed = False
        return None

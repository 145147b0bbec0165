"""A small driver of one model: paged caches in scattered blocks, prefill in chunks, decode, batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.device.base import Device
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.kv_cache.layout import BlockShape, layer_caches
from splitserve.worker.models.base import Model
from splitserve.worker.models.placement import Placement
from splitserve.worker.models.registry import ModelUses, load_model

BLOCK_SIZE = 8
NUM_BLOCKS = 96


@dataclass
class Row:
    """One sequence: its tokens, how many are computed, and the blocks that hold their KV."""

    tokens: list[int]
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)


class Driver:
    """Owns a loaded model, its caches and a pool of blocks in random order."""

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype = torch.float32,
        quantization: str = "none",
        model_impl: str = "auto",
        *,
        has_head: bool = True,
        placement: Placement[Device] | None = None,
    ) -> None:
        self.config: ModelConfig = read_model_config(path, model_impl)
        placement = placement or Placement(CpuDevice(), CpuAttention())
        self._device, self._backend = placement.device.torch_device, placement.backend
        self.model: Model = load_model(
            self.config,
            dtype,
            placement,
            lambda loaded, total: None,
            quantization,
            uses=ModelUses(has_head),
        )
        model = self.model
        pieces = 2 if self.config.latent is None else 1
        shape = BlockShape(model.num_layers, model.num_kv_heads, BLOCK_SIZE, model.head_dim, dtype, pieces)
        self._caches = layer_caches(self._backend.allocate(shape, NUM_BLOCKS))
        self._free = random.Random(7).sample(range(NUM_BLOCKS), NUM_BLOCKS)

    def run(self, *steps: tuple[Row, int], outputs: Sequence[int] | None = None) -> torch.Tensor:
        """Compute the next tokens of each row in one forward pass; return their hidden states, or some."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for row, count in steps:
            span = range(row.num_computed, row.num_computed + count)
            while len(row.blocks) * BLOCK_SIZE < span.stop:
                row.blocks.append(self._free.pop())
            token_ids += [row.tokens[i] for i in span]
            positions += span
            slots += [row.blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in span]
            starts.append(len(token_ids))
            row.num_computed = span.stop
        widest = max(len(row.blocks) for row, _ in steps)
        meta = AttentionMetadata(
            positions=self._int32(positions),
            slot_mapping=self._int32(slots),
            block_tables=self._int32([row.blocks + [0] * (widest - len(row.blocks)) for row, _ in steps]),
            cu_seqlens_q=self._int32(starts),
            seq_lens=self._int32([row.num_computed for row, _ in steps]),
        )
        self._backend.begin_step(meta)
        wanted = None if outputs is None else self._int32(outputs)
        return self.model.forward(self._int32(token_ids), meta, self._caches, wanted).clone()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [S, V] of hidden states."""
        return self.model.compute_logits(hidden).clone()

    def release(self, *rows: Row) -> None:
        """Give the blocks of rows back."""
        for row in rows:
            self._free += row.blocks
            row.blocks.clear()

    def prefill_logits(self, tokens: list[int]) -> torch.Tensor:
        """Return the logits [T, V] of a whole prompt computed in one pass."""
        row = Row(tokens)
        logits = self.logits(self.run((row, len(tokens))))
        self.release(row)
        return logits

    def greedy(self, prompt: list[int], num_tokens: int, chunk: int = 0) -> list[int]:
        """Return tokens generated greedily: prefill (in chunks if asked), then one token per pass."""
        row = Row(list(prompt))
        while True:
            left = len(row.tokens) - row.num_computed
            hidden = self.run((row, min(left, chunk or left)))
            if row.num_computed < len(row.tokens):
                continue
            row.tokens.append(int(self.logits(hidden[-1:]).argmax()))
            if len(row.tokens) == len(prompt) + num_tokens:
                self.release(row)
                return row.tokens[len(prompt) :]

    def _int32(self, values: Sequence[object]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self._device)

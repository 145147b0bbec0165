"""Rows for which a kernel drafts, without a batch: what they may draft and what they do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from splitserve.worker.ops.columns import (
    AccountColumns,
    Array,
    BatchColumns,
    DraftColumns,
    Width,
    allocate,
)
from splitserve.worker.ops.drafts.limits import (
    CALL_SIZE,
    MAX_DRAFTS,
    NUM_ALLOWED,
    NUM_DRAFTS,
    NUM_ENDED,
    NUM_ROWS,
    DraftLimits,
    DraftTensors,
    allow_drafts,
    begin_drafts,
)

N, MAX_LEN, BLOCK_SIZE = 3, 60, 4
SIZES = {Width.TOKENS: MAX_LEN + 1, Width.BLOCKS: 16, Width.HEADS: 16}
LIMITS = DraftLimits(BLOCK_SIZE, excluded=256, max_tokens=64, max_logits=64)


class DraftedRows:
    """Rows, of which all are in the batch and sample in the next step."""

    def __init__(self, *rows: list[int], limits: DraftLimits = LIMITS) -> None:
        self.batch = allocate(BatchColumns[Array], N, SIZES)
        self.drafts = allocate(DraftColumns[Array], N)
        self.account = allocate(AccountColumns[Array], N)
        self.call = np.full(CALL_SIZE, 77, np.int32)
        self.limits = limits
        self.batch.num_blocks[:] = 15
        self.drafts.max_num_computed[:] = 1000
        self.rows = np.zeros(N, np.int32)
        self.tensors = DraftTensors(
            torch.from_numpy(self.rows),
            BatchColumns(*map(torch.from_numpy, self.batch)),
            DraftColumns(*map(torch.from_numpy, self.drafts)),
            torch.from_numpy(self.call),
        )
        self.account.width[:] = 1000
        for row, tokens in enumerate(rows):
            self.batch.occupied[row] = True
            self.extend(row, tokens)

    def extend(self, row: int, tokens: list[int]) -> None:
        length = int(self.batch.num_tokens[row])
        self.batch.tokens[row, length : length + len(tokens)] = tokens
        self.batch.num_tokens[row] = length + len(tokens)
        self.batch.num_computed[row] = length + len(tokens) - 1

    def draft(
        self,
        kernel: Callable[[DraftTensors], None],
        max_drafts: int = 4,
        rows: tuple[int, ...] = (0,),
        before: dict[int, list[int]] | None = None,
    ) -> list[list[int] | None]:
        """The drafts of rows, None of one that has ended; `before` are those of another drafter."""
        self.rows[: len(rows)] = rows
        call, step = self.call, self.tensors
        call[NUM_ROWS], call[MAX_DRAFTS] = len(rows), max_drafts
        begin_drafts(step, torch.ones(N, dtype=torch.int32), self.limits)
        for row, tokens in (before or {}).items():
            end = int(self.batch.num_tokens[row])
            self.batch.tokens[row, end : end + len(tokens)] = tokens
            self.drafts.num_drafts[row] = len(tokens)
            call[NUM_DRAFTS] += len(tokens)
        allow_drafts(step, AccountColumns(*map(torch.from_numpy, self.account)))
        assert call[NUM_ALLOWED] == np.count_nonzero(self.drafts.allowed[list(rows)])
        kernel(step)
        counts = self.drafts.num_drafts[list(rows)].tolist()
        assert call[NUM_ENDED] == sum(count < 0 for count in counts)
        assert call[NUM_DRAFTS] == sum(count for count in counts if count > 0)
        found: list[list[int] | None] = []
        for row, count in zip(rows, counts, strict=True):
            end = int(self.batch.num_tokens[row])
            found.append(None if count < 0 else self.batch.tokens[row, end : end + count].tolist())
        return found

"""A speculator without accounts: a draft model drafts for every row and step as much as there is room for."""

from __future__ import annotations

from collections import Counter
from typing import cast

import numpy as np

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.ops.columns import Int32
from splitserve.worker.sampling.step_result import RowEnds
from splitserve.worker.speculation.draft_model.draft_model import DraftModel
from splitserve.worker.speculation.draft_model.passes import Span
from splitserve.worker.speculation.draft_sheet import DraftSheet
from splitserve.worker.speculation.drafting import Drafting
from splitserve.worker.speculation.step_times import StepTimes

EXCLUDED = np.uint16(Feature.PROMPT_LOGPROBS | Feature.GRAMMAR)


class Sheet:
    """What a drafter sees of a DraftSheet."""

    def __init__(self, num_rows: int) -> None:
        self.columns = self
        self.max_num_computed = np.zeros(num_rows, np.int32)
        self.allowed = np.zeros(num_rows, np.int32)
        self.num_drafts = np.zeros(num_rows, np.int32)
        self.num_rows = 0

    def allowed_rows(self) -> Int32:
        rows: Int32 = self.allowed.nonzero()[0].astype(np.int32)
        return rows

    def append(self, row: int, token_ids: Int32) -> None:
        assert len(token_ids) <= self.allowed[row]
        self.num_drafts[row] += len(token_ids)


class Always:
    """See above; compares the drafts with those of `fresh`, which reads every row from its beginning.

    With is_ahead, drafts are for steps of a pipeline to come: the drafter sees to it that they have blocks.
    """

    drafts = True

    def __init__(self, drafter: DraftModel, fresh: DraftModel, *, is_ahead: bool = False) -> None:
        self._drafter, self._fresh = drafter, fresh
        self._is_ahead = is_ahead
        self._batch = drafter._batch
        drafter._plain_steps.skip_first()
        self._sheet = Sheet(len(self._batch.num_tokens))
        self.seen: Counter[str] = Counter()
        # Of every row that drafted, how many of its tokens had been read before.
        self.starts: list[int] = []

    def drafting(self) -> Drafting:
        return Drafting(self, self._drafter._sampler.grammars, None, self._drafter)  # type: ignore[arg-type]

    def enter(self, step: SchedulerOutput) -> None:
        for new in step.new_rows:
            self._sheet.max_num_computed[new.row] = new.max_num_computed_tokens
            self._drafter.enter(new)

    def draft(self, step: SchedulerOutput) -> Int32 | None:
        self.seen["steps"] += 1
        self.enter(step)
        self._allow(step)
        starts = self._drafter._coverage.of(np.arange(len(self._sheet.allowed))).copy()
        if self._sheet.allowed.any():
            self._drafter.draft(cast("DraftSheet", self._sheet))
        for row in (self._sheet.num_drafts > 0).nonzero()[0].tolist():
            self._draft_afresh(row)
            self.starts.append(int(starts[row]))
        return self._sheet.num_drafts

    def leave(self, step: SchedulerOutput) -> None:
        pass

    def passes(self, step: SchedulerOutput) -> bool:
        return False

    rest = known_rest = 0

    def num_affordable_reads(self, most: int) -> int:
        return most

    def read_ahead(self, step: SchedulerOutput, seconds: float) -> None:
        self.seen["read ahead"] += 1

    def pauses(self, method: str) -> Int32:
        return np.zeros(len(self._sheet.allowed), np.int32)

    def learn(self, rows: Int32, num_drafts: Int32, num_counted: Int32) -> list[RowEnds]:
        self.seen["drafted"] += int(num_drafts.sum())
        self.seen["counted"] += int(num_counted.sum())
        return []

    def took(self, step: SchedulerOutput, times: StepTimes, *, is_at_speed: bool) -> None:
        self.seen["timed"] += 1

    def _allow(self, step: SchedulerOutput) -> None:
        batch, sheet = self._batch, self._sheet
        rows, num_new = unpack_int32(step.rows), unpack_int32(step.num_tokens)
        sheet.allowed[:] = sheet.num_drafts[:] = 0
        sheet.num_rows = len(rows)
        left = batch.limits.max_num_batched_tokens - int(num_new.sum())
        for row, count in zip(rows.tolist(), num_new.tolist(), strict=True):
            length, computed = int(batch.num_tokens[row]), int(batch.num_computed[row])
            last = int(sheet.max_num_computed[row])
            if not self._is_ahead:
                last = min(last, int(batch.blocks.room(np.array([row]))[0]))
            if computed >= sheet.max_num_computed[row]:
                sheet.num_drafts[row] = -1
            elif computed + count == length and not batch.sampling.features[row] & EXCLUDED:
                sheet.allowed[row] = max(0, min(step.max_drafts, last - length, left))
                left -= int(sheet.allowed[row])

    def _draft_afresh(self, row: int) -> None:
        tokens, end = self._batch.tokens[row], int(self._batch.num_tokens[row])
        drafted = tokens[end : end + self._sheet.num_drafts[row]].tolist()
        assert end + len(drafted) - 1 <= self._drafter._max_model_len
        one, zero = np.array([row], np.int32), np.zeros(1, np.int32)
        count = np.array([len(drafted)], np.int32)
        self._fresh._read(Span(one, zero, np.array([end], np.int32)), count)
        assert tokens[end : end + len(drafted)].tolist() == drafted

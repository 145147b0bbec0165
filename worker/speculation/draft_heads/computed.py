"""Which hidden states did the last step leave? Those of the tokens it computed, until the next one runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.ops.columns import Index, Int32
from splitserve.worker.speculation.draft_model.passes import Span


class Computed(NamedTuple):
    """The tokens of a step: of each of R rows those from a position on, as they lie side by side.

    Attributes:
        rows: int32 [R].
        starts: int32 [R], position of each row's first.
        cu_seqlens: int32 [R + 1].
    """

    rows: Int32
    starts: Int32
    cu_seqlens: Int32

    @classmethod
    def of(cls, inputs: StepInputs) -> Computed:
        """Return what a step has computed, in its own arrays, which the next one overwrites."""
        return cls(inputs.rows, inputs.starts, inputs.cu_seqlens)

    @property
    def ends(self) -> Int32:
        """Position behind each row's last, int32 [R]."""
        return self.starts + np.diff(self.cu_seqlens)

    def select(self, which: Index) -> ComputedRows:
        """Return some of the rows."""
        return ComputedRows(self.rows[which], self.starts[which], self.ends[which], self.cu_seqlens[which])


class ComputedRows(NamedTuple):
    """Some rows of a step: int32 [n] each.

    Attributes:
        rows: of the batch.
        starts, ends: positions of their tokens.
        places: of each row's first token among those of the step.
    """

    rows: Int32
    starts: Int32
    ends: Int32
    places: Int32

    def places_of(self, span: Span) -> Index:
        """Return the places of a span's tokens; it is of these rows, in their order, and lies within."""
        first = self.places + span.starts - self.starts
        before = span.counts.cumsum() - span.counts
        within = np.arange(int(span.counts.sum())) - before.repeat(span.counts)
        places: Index = first.repeat(span.counts) + within
        return places

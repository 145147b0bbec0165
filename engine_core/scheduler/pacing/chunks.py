"""Which tokens of which rows does a step compute, while it is planned and while it is in flight?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.scheduler.running import IntColumn


class Chunks(NamedTuple):
    """How many tokens a step computes of which rows; all int64 [n].

    Attributes:
        rows: in the order they are served.
        num_tokens: of each, at least 1.
        ends: num_computed_tokens of each after the step.
    """

    rows: IntColumn
    num_tokens: IntColumn
    ends: IntColumn

    def select(self, which: slice | npt.NDArray[np.bool_]) -> Chunks:
        """Return some of them, in the same order."""
        return Chunks(self.rows[which], self.num_tokens[which], self.ends[which])

    def behind(self, others: Chunks) -> Chunks:
        """Return the others followed by these."""
        return Chunks(*map(np.concatenate, zip(others, self, strict=True)))


class PlannedStep(NamedTuple):
    """A planned step whose output has not been applied.

    Attributes:
        step: its number.
        rows: int64 [n]; rows it computes.
        num_computed_tokens: int64 [n]; their counts after it, if no draft counts.
        sampling_rows: int64 [m]; rows that sample in it, in the order of `rows`.
        packed_sampling_rows: the same as the worker names them.
        packed_num_tokens: int32 column [n]; tokens it computes of each of `rows`.
        num_moves: blocks that are moved between pool and offload tier before it computes.
        max_drafts: tokens that each of `sampling_rows` may sample beyond its first one.
    """

    step: int
    rows: IntColumn
    num_computed_tokens: IntColumn
    sampling_rows: IntColumn
    packed_sampling_rows: bytes
    packed_num_tokens: bytes
    num_moves: int
    max_drafts: int = 0


class DecodeCounts:
    """The counts of a step in which every row decodes, and their packed form: made once, used by all of them.

    Whoever keeps past steps then keeps one column, and not one for each.
    """

    def __init__(self) -> None:
        self._ones: IntColumn = np.zeros(0, np.int64)
        self._packed = b""

    def of(self, num_rows: int) -> IntColumn:
        """Return int64 [num_rows], all 1; the same as last time if the number is the same. Read-only."""
        if len(self._ones) != num_rows:
            self._ones = np.ones(num_rows, np.int64)
            self._ones.flags.writeable = False
            self._packed = pack_int32(self._ones)
        return self._ones

    def pack(self, num_tokens: IntColumn) -> bytes:
        """Pack the counts of a step, which may be those of of()."""
        return self._packed if num_tokens is self._ones else pack_int32(num_tokens)

"""Steps in which every row decodes share one column of counts, and others have their own."""

from __future__ import annotations

import numpy as np

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.scheduler.pacing.chunks import DecodeCounts


def test_steps_of_as_many_rows_share_one_column() -> None:
    counts = DecodeCounts()
    first = counts.pack(counts.of(3))
    assert unpack_int32(first).tolist() == [1, 1, 1]
    assert counts.pack(counts.of(3)) is first
    assert unpack_int32(counts.pack(counts.of(2))).tolist() == [1, 1]
    assert unpack_int32(counts.pack(counts.of(3))).tolist() == [1, 1, 1]


def test_other_counts_are_packed_as_they_are() -> None:
    counts = DecodeCounts()
    counts.of(3)
    assert unpack_int32(counts.pack(np.array([1, 4, 1]))).tolist() == [1, 4, 1]
    # Of rows that were left, as when blocks are short.
    assert unpack_int32(counts.pack(counts.of(3)[:2])).tolist() == [1, 1]

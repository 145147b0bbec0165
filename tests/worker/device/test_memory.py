"""How much of a GPU's memory the KV cache gets."""

from __future__ import annotations

import pytest

from splitserve.worker.device.memory import DeviceMemory, cache_bytes, free_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "utilization", "pool", "expected"),
    [
        # 10 outside torch's allocator, 30 at the peak of which 2 were a KV cache: 90 - 10 - 28.
        (DeviceMemory(100 * GIB, 70 * GIB, 20 * GIB, 20 * GIB, 30 * GIB), 0.9, 2 * GIB, 52 * GIB),
        # Graphs keep 3 beside it.
        (DeviceMemory(100 * GIB, 67 * GIB, 23 * GIB, 20 * GIB, 30 * GIB), 0.9, 2 * GIB, 49 * GIB),
        # Another process holds half of it.
        (DeviceMemory(100 * GIB, 10 * GIB, 35 * GIB, 35 * GIB, 35 * GIB), 0.9, 0, 0),
        (DeviceMemory(100 * GIB, 65 * GIB, 35 * GIB, 35 * GIB, 35 * GIB), 0.3, 0, 0),
    ],
)
def test_it_gets_what_the_largest_step_leaves(
    memory: DeviceMemory, utilization: float, pool: int, expected: int
) -> None:
    assert cache_bytes(memory, utilization, pool) == expected


def test_what_is_free_is_within_the_share_and_what_others_left() -> None:
    assert free_bytes(DeviceMemory(100 * GIB, 70 * GIB, 0, 0, 0), 0.9) == 60 * GIB
    assert free_bytes(DeviceMemory(100 * GIB, 70 * GIB, 0, 0, 0), 1.0) == 70 * GIB
    assert free_bytes(DeviceMemory(100 * GIB, 70 * GIB, 0, 0, 0), 0.2) == 0

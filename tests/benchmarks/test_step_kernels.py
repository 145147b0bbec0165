"""The clock around operations hands on what they return: workers ask some of them."""

from __future__ import annotations

from benchmarks.step_kernels import OpTimes


class Ops:
    """Stands for worker.ops.cpu.CpuOps."""

    def count(self, number: int) -> int:
        """Return one more."""
        return number + 1


def test_a_watched_operation_is_timed_and_returns_what_it_returned() -> None:
    ops, times = Ops(), OpTimes()
    times.watch(ops)
    assert ops.count(2) == 3
    assert list(times.take()) == ["count"]

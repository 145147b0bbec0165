"""Threads: the setting, and calls from several threads at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.worker.ops.helpers import assert_same_bits
from worker import ops
from worker.packed_weight import PackedWeight


def test_the_number_of_threads_is_what_was_set() -> None:
    ops.set_num_threads(3)
    assert ops.num_threads() == 3


@pytest.mark.parametrize("threads", [1, 3])
def test_calls_from_several_threads_at_once_do_not_disturb_each_other(
    threads: int, dtype: torch.dtype
) -> None:
    ops.set_num_threads(threads)
    x, weight = torch.randn(5, 256).to(dtype), torch.randn(300, 256).to(dtype)
    packed = PackedWeight.of(weight)
    expected = torch.empty(5, 300, dtype=dtype)
    ops.linear(expected, x, packed)

    def call(_: int) -> torch.Tensor:
        out = torch.empty(5, 300, dtype=dtype)
        ops.linear(out, x, packed)
        return out

    with ThreadPoolExecutor(3) as pool:
        for out in pool.map(call, range(60)):
            assert_same_bits(out, expected)


def test_more_threads_than_tasks_are_fine(dtype: torch.dtype) -> None:
    x, weight = torch.randn(1, 4096).to(dtype), torch.randn(30, 4096).to(dtype)
    packed = PackedWeight.of(weight)
    outputs = [torch.empty(1, 30, dtype=dtype) for _ in range(2)]
    for threads, out in zip((1, 20), outputs, strict=True):
        ops.set_num_threads(threads)
        ops.linear(out, x, packed)
    assert_same_bits(*outputs)

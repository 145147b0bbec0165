"""Threads: the setting, and calls from several threads at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.decode import Recording
from splitserve.worker.ops.packed_weight import PackedWeight
from tests.worker.ops.helpers import assert_same_bits


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


@pytest.mark.parametrize("rows", [1, 40])
def test_replays_from_several_threads_at_once_do_not_disturb_each_other(rows: int) -> None:
    """Of one row the helpers are not woken, of forty they are; one thread at a time has them."""
    ops.set_num_threads(3)
    packed = PackedWeight.of(torch.randn(700, 256))

    def recorded(seed: int) -> tuple[Recording, list[torch.Tensor]]:
        x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(seed))
        first, second = torch.empty(rows, 700), torch.empty(rows, 350)
        with Recording() as recording:
            ops.linear(first, x, packed)
            ops.silu_and_mul(second, first)
        return recording, [second, second.clone(), first, x]

    def call(program: tuple[Recording, list[torch.Tensor]]) -> bool:
        recording, (out, expected, *_) = program
        same = []
        for _ in range(30):
            out.zero_()
            recording.replay()
            same.append(torch.equal(out, expected))
        return all(same)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(call, [recorded(seed) for seed in range(3)]))


def test_a_replay_that_fails_gives_the_helpers_back() -> None:
    ops.set_num_threads(3)
    packed, x, out = PackedWeight.of(torch.randn(700, 256)), torch.randn(40, 256), torch.empty(40, 700)
    ids, rows = torch.zeros(40, dtype=torch.int32), torch.empty(40, 256)
    with Recording() as recording:
        ops.linear(out, x, packed)
        ops.embedding(rows, ids, packed)
    expected = out.clone()
    ids[3] = 700
    for _ in range(3):
        out.zero_()
        with pytest.raises(ValueError, match="700 is outside"):
            recording.replay()
        assert_same_bits(out, expected)
    ids[3] = 0
    recording.replay()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(recording.replay).result()
    assert_same_bits(out, expected)

"""Exchanges through shared memory, with a thread in place of each rank's process."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch

from splitserve.engine_core.errors import RankLostError
from splitserve.worker.parallel import exchange as exchange_ops
from splitserve.worker.parallel.exchange import OWN_WORDS, TIMEOUT_NS, Exchange
from splitserve.worker.parallel.group import StepAbandonedError
from splitserve.worker.parallel.shares import share
from tests.worker.ops.helpers import assert_same_bits, sum_in_order

T = TypeVar("T")
DEADLINE_S = 60.0
# A slot holds this many float32.
SLOT = 65536
# The first words of a rank's line: the part it has posted, and how many sleep for it.
LINE_WORDS, POSTED, SLEEPERS = 16, 0, 1
# Of Exchange.own.
SETTLED = 2


def make_exchanges(size: int, timeout_s: float = DEADLINE_S, last_part: int = 0) -> list[Exchange]:
    """What each rank would have mapped, after so many parts."""
    num_bytes = exchange_ops.num_bytes(size)
    # Aligned to a line, as pages are.
    room = torch.zeros(num_bytes + 64, dtype=torch.uint8)
    memory = room[-room.data_ptr() % 64 :][:num_bytes]
    lines_of(memory)[: size * LINE_WORDS : LINE_WORDS] = last_part - (last_part >> 31 << 32)
    exchanges = []
    for rank in range(size):
        own = torch.zeros(OWN_WORDS, dtype=torch.int64)
        own[0] = own[SETTLED] = last_part
        own[TIMEOUT_NS] = round(timeout_s * 1e9)
        exchanges.append(Exchange(memory, own, rank, size))
    return exchanges


def lines_of(memory: torch.Tensor) -> torch.Tensor:
    return memory[: memory.numel() // 4 * 4].view(torch.int32)


def on_all(exchanges: list[Exchange], run: Callable[[Exchange], T]) -> list[T]:
    """What every rank gets, all at the same time; a rank that waits in vain for another ends by itself."""
    with ThreadPoolExecutor(len(exchanges)) as pool:
        return list(pool.map(run, exchanges))


@pytest.mark.parametrize(
    ("dtype", "part_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("size", "rows", "width"), [(2, 1, 576), (2, 7, 33), (3, 5, 30001), (4, 1, 1), (2, 300, 577)]
)
def test_every_rank_gets_the_sum_in_the_order_of_the_ranks(
    size: int, rows: int, width: int, has_bias: bool, dtype: torch.dtype, part_dtype: torch.dtype
) -> None:
    torch.manual_seed(rows * width)
    parts = [(torch.randn(rows, width) * 10.0**i).to(part_dtype) for i in range(size)]
    bias = torch.randn(width).to(dtype) if has_bias else None

    def run(exchange: Exchange) -> torch.Tensor:
        out = torch.empty(rows, width, dtype=dtype)
        exchange_ops.sum_into(exchange, out, parts[exchange.rank], bias)
        return out

    for out in on_all(make_exchanges(size), run):
        assert_same_bits(out, sum_in_order(parts, bias, dtype))


@pytest.mark.parametrize(
    ("size", "rows", "total"), [(2, 1, 333), (4, 3, 10), (2, 2, 3 * SLOT), (3, 40, 5003)]
)
def test_rank_0_gets_the_columns_of_all_side_by_side(size: int, rows: int, total: int) -> None:
    whole = torch.randn(rows, total)

    def run(exchange: Exchange) -> torch.Tensor | None:
        own = share(total, exchange.rank, size)
        out = torch.full((rows, total), torch.nan) if exchange.rank == 0 else None
        exchange_ops.gather_columns(exchange, out, whole[:, own.start : own.stop].contiguous(), total)
        return out

    out, *others = on_all(make_exchanges(size), run)
    assert out is not None
    assert torch.equal(out, whole)
    assert others == [None] * (size - 1)


@pytest.mark.parametrize("count", [0, 1, 3 * SLOT + 5])
def test_everybody_gets_the_values_of_rank_0(count: int) -> None:
    values = torch.arange(count, dtype=torch.int32)

    def run(exchange: Exchange) -> torch.Tensor:
        mine = values.clone() if exchange.rank == 0 else torch.full_like(values, -1)
        exchange_ops.settle(exchange, mine)
        return mine

    for found in on_all(make_exchanges(3), run):
        assert torch.equal(found, values)


@pytest.mark.parametrize("last_part", [0, 2**31 - 20, 2**32 - 20])
@pytest.mark.parametrize("size", [2, 3])
def test_slots_are_reused_by_turns_whatever_exchanges_follow_each_other(size: int, last_part: int) -> None:
    """A slot written before all have read it would show here, and a number that does not wrap round."""

    def run(exchange: Exchange) -> list[list[float]]:
        rng = random.Random(size)
        found = []
        for turn in range(400):
            kind, count = rng.randrange(3), rng.choice([1, 3, 100])
            own = torch.full((1, count), turn + exchange.rank, dtype=torch.float32)
            if kind == 0:
                exchange_ops.sum_into(exchange, own, own.clone(), None)
                found.append(own[0].tolist())
            elif kind == 1:
                out = torch.empty(1, count * size) if exchange.rank == 0 else None
                exchange_ops.gather_columns(exchange, out, own, count * size)
                found.append([] if out is None else out[0].tolist())
            else:
                values = own[0].int()
                exchange_ops.settle(exchange, values)
                found.append(values.tolist())
        return found

    all_found = on_all(make_exchanges(size, last_part=last_part), run)
    rng = random.Random(size)
    for turn in range(400):
        kind, count = rng.randrange(3), rng.choice([1, 3, 100])
        for rank, found in enumerate(all_found):
            if kind == 0:
                assert found[turn] == [float(size * turn + sum(range(size)))] * count
            elif kind == 1:
                expected = [float(turn + other) for other in range(size) for _ in range(count)]
                assert found[turn] == (expected if rank == 0 else [])
            else:
                assert found[turn] == [turn] * count


def test_a_rank_that_sleeps_is_woken_by_the_one_it_waits_for() -> None:
    early, late = make_exchanges(2)
    lines = lines_of(early.memory)
    one = torch.ones(1, 1)
    out = torch.empty(1, 1)
    thread = threading.Thread(target=exchange_ops.sum_into, args=(early, out, one, None))
    thread.start()
    while lines[LINE_WORDS + SLEEPERS].item() == 0:
        assert thread.is_alive()
    exchange_ops.sum_into(late, torch.empty(1, 1), one, None)
    thread.join(DEADLINE_S / 2)
    assert not thread.is_alive(), "it would wake up by itself when its time is over"
    assert out.item() == 2
    assert lines[LINE_WORDS + SLEEPERS].item() == 0


@pytest.mark.parametrize("fails_at", ["sum", "gather", "settle"])
@pytest.mark.parametrize(("size", "failing"), [(2, 0), (2, 1), (4, 2)])
def test_all_ranks_abandon_a_step_together_and_go_on_from_the_one_before(
    size: int, failing: int, fails_at: str
) -> None:
    """Every other step, one rank does not come to one of the exchanges; more often than the numbers last."""
    num_steps = 600

    def run(exchange: Exchange) -> list[int | None]:
        settled: list[int | None] = []
        for step in range(num_steps):
            own = torch.full((1, 3), step, dtype=torch.float32)
            try:
                for kind in ("sum", "sum", "gather", "settle"):
                    if step % 2 and exchange.rank == failing and kind == fails_at:
                        raise MemoryError
                    if kind == "sum":
                        exchange_ops.sum_into(exchange, own, own.clone(), None)
                    elif kind == "gather":
                        out = torch.empty(1, 3 * size) if exchange.rank == 0 else None
                        exchange_ops.gather_columns(exchange, out, own, 3 * size)
                    else:
                        values = own[0].int()
                        exchange_ops.settle(exchange, values)
                        settled.append(int(values[2]))
            except (MemoryError, StepAbandonedError):
                exchange_ops.abandon(exchange)
                settled.append(None)
        return settled

    expected = [None if step % 2 else step * size * size for step in range(num_steps)]
    assert on_all(make_exchanges(size), run) == [expected] * size


def test_a_rank_that_sleeps_hears_that_the_one_it_waits_for_has_abandoned_the_step() -> None:
    early, late = make_exchanges(2)
    lines = lines_of(early.memory)
    one = torch.ones(1, 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(exchange_ops.sum_into, early, one.clone(), one, None)
        while lines[LINE_WORDS + SLEEPERS].item() == 0:
            assert not waiting.done()
        abandoning = threading.Thread(target=exchange_ops.abandon, args=(late,))
        abandoning.start()
        with pytest.raises(StepAbandonedError, match="place 1 of 2 has abandoned the step"):
            waiting.result(DEADLINE_S / 2)
        assert abandoning.is_alive(), "it waits for the other to abandon the step, too"
        exchange_ops.abandon(early)
        abandoning.join(DEADLINE_S / 2)
        assert not abandoning.is_alive()


def test_who_abandons_a_step_does_not_wait_for_ever() -> None:
    first, _ = make_exchanges(2, timeout_s=0.01)
    with pytest.raises(RankLostError, match="place 1 of 2"):
        exchange_ops.abandon(first)


def test_who_waits_in_vain_says_for_whom() -> None:
    first, _, third = make_exchanges(3, timeout_s=0.01)
    one = torch.ones(1, 1)
    with pytest.raises(RankLostError, match=r"failed: place 1 of 3 did not come within 0\.01 s"):
        exchange_ops.sum_into(first, one, one.clone(), None)
    with pytest.raises(RankLostError, match="place 1 of 3"):
        exchange_ops.sum_into(third, one, one.clone(), None)


def test_wrong_arguments_are_refused_before_anything_is_exchanged() -> None:
    first, second = make_exchanges(2)
    one = torch.ones(1, 4)
    wrong: list[tuple[type[Exception], str, Callable[[], None]]] = [
        (
            ValueError,
            "rank: expected 0 to 1",
            lambda: exchange_ops.settle(first._replace(rank=2), one[0].int()),
        ),
        (
            ValueError,
            "size: expected 1 to 64",
            lambda: exchange_ops.settle(first._replace(size=65), one[0]),
        ),
        (
            ValueError,
            "memory: expected size",
            lambda: exchange_ops.sum_into(first._replace(size=3), one, one, None),
        ),
        (TypeError, "values: unsupported dtype", lambda: exchange_ops.settle(first, one[0])),
        (ValueError, "partial: expected size 4", lambda: exchange_ops.sum_into(first, one, one[:, :3], None)),
        (
            ValueError,
            "out: expected contiguous",
            lambda: exchange_ops.sum_into(first, torch.empty(2, 8)[:, :4], one, None),
        ),
        (
            TypeError,
            "partial: dtype differs",
            lambda: exchange_ops.sum_into(first, one, one.bfloat16(), None),
        ),
        (ValueError, "columns: expected size 5", lambda: exchange_ops.gather_columns(first, one, one, 10)),
        (ValueError, "out: rank 0 has it", lambda: exchange_ops.gather_columns(second, one, one, 8)),
    ]
    for kind, text, call in wrong:
        with pytest.raises(kind, match=text):
            call()
    assert not lines_of(first.memory)[: 2 * LINE_WORDS].any()

"""Large work in slices: one per turn of the loop, and JSON that comes in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.slices import SLICE_VALUES, SliceQueue


async def test_one_slice_is_done_per_turn_of_the_loop() -> None:
    slices, order = SliceQueue(), []

    async def work(name: str) -> None:
        for i in range(3):
            await slices.turn()
            order.append(f"{name}{i}")

    async def others() -> None:
        for _ in range(40):
            order.append("-")
            await asyncio.sleep(0)

    await asyncio.gather(work("a"), work("b"), others())
    done = [item for item in order if item != "-"]
    assert done == ["a0", "b0", "a1", "b1", "a2", "b2"]
    # The others have had a turn between any two slices.
    assert all(order[i + 1] == "-" for i, item in enumerate(order[:-1]) if item != "-")


async def test_who_is_cancelled_while_it_waits_takes_no_turn_of_others() -> None:
    slices = SliceQueue()
    gone, stays = asyncio.create_task(slices.turn()), asyncio.create_task(slices.turn())
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    assert gone.cancelled()


class Inner(msgspec.Struct):
    """A part of an answer."""

    name: str
    ids: list[int]
    texts: list[str]


class Outer(msgspec.Struct):
    """An answer."""

    inner: list[Inner]
    text: str
    last: int = 7


@pytest.mark.parametrize("size", [0, 1, SLICE_VALUES, SLICE_VALUES + 1, 5 * SLICE_VALUES])
def test_a_text_in_pieces_is_the_text_of_the_whole(size: int) -> None:
    name = 'a "quoted" \x00 name \ud7ff \U0001f600'
    whole = Outer([Inner(name, list(range(size)), [name] * size) for _ in range(3)], name * size)
    pieces = JsonPieces()

    def inner() -> Iterator[Inner]:
        for each in whole.inner:
            # In another order than they stand in the text.
            texts = pieces.long_list(each.texts, size, 2)
            yield Inner(each.name, pieces.long_list(each.ids, size), texts)

    value = Outer(pieces.long_list(inner(), 3, 3 * size + 1), pieces.long_text([name] * size))
    text = b"".join(pieces.fill(msgspec.json.encode(value)))
    assert text == msgspec.json.encode(whole)


def test_items_are_made_when_their_piece_is_asked_for() -> None:
    num_made = 0

    def items() -> Iterator[int]:
        nonlocal num_made
        for i in range(100 * SLICE_VALUES):
            num_made += 1
            yield i

    pieces = JsonPieces()
    filled = pieces.fill(msgspec.json.encode(pieces.long_list(items(), 100 * SLICE_VALUES)))
    assert num_made == 0
    next(filled)
    assert num_made < 5 * SLICE_VALUES
    assert sum(1 for _ in filled) > 20


def test_a_short_list_is_made_at_once() -> None:
    pieces = JsonPieces()
    assert pieces.long_list(iter([1, 2]), 2) == [1, 2]
    assert not pieces.has_parts

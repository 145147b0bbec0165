from __future__ import annotations

import pytest

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_cache.announced import AnnouncedBlocks


def test_a_row_announces_one_block_at_a_time() -> None:
    announced = AnnouncedBlocks()
    announced.announce(3, b"first")
    announced.announce(3, b"second")
    assert announced.row_of(b"first") is None
    assert announced.row_of(b"second") == 3
    assert len(announced) == 1
    assert 3 in announced


def test_when_the_first_of_two_rows_leaves_the_other_is_named() -> None:
    announced = AnnouncedBlocks()
    announced.announce(1, b"same")
    announced.announce(2, b"same")
    assert announced.row_of(b"same") == 1
    announced.withdraw(1)
    assert announced.row_of(b"same") == 2
    announced.withdraw(2)
    assert announced.row_of(b"same") is None
    announced.withdraw(2)
    announced.check_integrity({})


def test_the_check_sees_a_row_that_fills_something_else() -> None:
    announced = AnnouncedBlocks()
    announced.announce(0, b"a")
    announced.check_integrity({0: b"a"})
    with pytest.raises(IntegrityError, match="row 0"):
        announced.check_integrity({0: b"b"})

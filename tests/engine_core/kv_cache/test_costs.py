from __future__ import annotations

from splitserve.engine_core.kv_cache.costs import KVCosts, nothing_known

BLOCK_SIZE = 4


def quadratic(first_token: int, end_token: int) -> int:
    """A token takes 10 ns and one more per token before it, as attention has it."""
    return sum(10 + position for position in range(first_token, end_token))


def test_moving_is_the_way_while_nothing_is_known() -> None:
    costs = KVCosts(nothing_known, 10**9, BLOCK_SIZE)
    assert costs.is_worth_saving(1)
    assert costs.is_worth_loading(0, 1, 1)
    assert KVCosts(quadratic, 0, BLOCK_SIZE).is_worth_saving(1)


def test_a_block_is_saved_if_moving_its_longest_sequence_twice_is_cheaper_than_computing_it() -> None:
    # 40 + 6 ns for the first block, 46 + 62 ns for two.
    assert KVCosts(quadratic, 23, BLOCK_SIZE).is_worth_saving(1)
    assert not KVCosts(quadratic, 24, BLOCK_SIZE).is_worth_saving(1)
    assert KVCosts(quadratic, 27, BLOCK_SIZE).is_worth_saving(2)
    assert not KVCosts(quadratic, 28, BLOCK_SIZE).is_worth_saving(2)


def test_what_is_worth_saving_stays_so_for_whatever_it_is_the_beginning_of() -> None:
    # Otherwise the end of a sequence would be kept without its beginning, where no prefix is found.
    for move_ns in range(0, 200, 7):
        worth = [KVCosts(quadratic, move_ns, BLOCK_SIZE).is_worth_saving(n) for n in range(1, 20)]
        assert worth == sorted(worth)


def test_loads_are_compared_with_computing_the_blocks_between() -> None:
    costs = KVCosts(quadratic, 62, BLOCK_SIZE)
    assert costs.is_worth_loading(1, 2, 1)
    assert not costs.is_worth_loading(0, 1, 1)
    # One of the two blocks stands in the pool, behind the one to load.
    assert costs.is_worth_loading(0, 2, 1)


def test_a_row_comes_back_the_cheaper_way() -> None:
    computed = quadratic(4, 11)
    assert KVCosts(quadratic, 1, BLOCK_SIZE).return_cost(1, 11, can_move=False) == computed
    assert KVCosts(quadratic, 10**6, BLOCK_SIZE).return_cost(1, 11, can_move=True) == computed
    # One full block moves out and back, three tokens are computed.
    assert KVCosts(quadratic, 5, BLOCK_SIZE).return_cost(1, 11, can_move=True) == 2 * 5 + quadratic(8, 11)


def test_tokens_stand_for_time_while_nothing_is_known() -> None:
    assert KVCosts(nothing_known, 5, BLOCK_SIZE).return_cost(1, 11, can_move=True) == 7
    assert KVCosts(quadratic, 5, BLOCK_SIZE).return_cost(1, 4, can_move=True) == 0

"""Beam search as a state machine, against a second implementation that looks at every token of every beam."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.engines.beam.search import BeamSearch, SearchRules
from splitserve.frontend.engines.generation import TokenLogprob

Output = tuple[int, ...]
Table = Callable[[Output], list[float]]


def random_table(seed: int, vocab_size: int, *, grain: float) -> Table:
    """Logprobs of every next token after any output; multiples of `grain`, so that sums tie and are exact."""

    def row(output: Output) -> list[float]:
        chance = random.Random(f"{seed} {output}")
        return [-grain * chance.randrange(1, 9) for _ in range(vocab_size)]

    return row


def search(rules: SearchRules, table: Table, max_steps: int = 64) -> tuple[list[tuple[float, Output]], int]:
    """Run to the end with as many candidates as the rules ask for; returns rates, outputs and steps."""
    state, steps = BeamSearch(rules), 0
    while not state.done:
        state.advance(
            [best_candidates(table(ids(beam.tokens)), rules.num_candidates) for beam in state.beams]
        )
        steps += 1
        assert steps <= max_steps
        assert len(state.beams) <= rules.width
        assert [beam.score for beam in state.beams] == sorted((b.score for b in state.beams), reverse=True)
        assert [entry.rate for entry in state.found] == sorted((f.rate for f in state.found), reverse=True)
    return [(entry.rate, ids(entry.beam.tokens)) for entry in state.found], steps


def ids(tokens: tuple[TokenLogprob, ...]) -> Output:
    return tuple(token.token_id for token in tokens)


def best_candidates(row: list[float], count: int) -> list[TokenLogprob]:
    order = sorted(range(len(row)), key=lambda token_id: (-row[token_id], token_id))
    return [TokenLogprob(token_id, row[token_id], rank, []) for rank, token_id in enumerate(order[:count], 1)]


class Slot(NamedTuple):
    """An output of the second implementation."""

    score: float
    output: Output


def plain_search(rules: SearchRules, table: Table, vocab_size: int) -> tuple[list[tuple[float, Output]], int]:
    """The same by brute force: width slots from the start, the unused ones with a score of minus infinity."""
    running = [Slot(0.0, ())]
    finished = [Slot(-math.inf, ())] * rules.width
    for length in range(1, rules.max_tokens + 1):
        every = [
            Slot(slot.score + table(slot.output)[token_id], (*slot.output, token_id))
            for slot, token_id in itertools.product(running, range(vocab_size))
        ]
        if length <= rules.min_tokens:
            every = [slot for slot in every if slot.output[-1] not in rules.end_ids]
        every.sort(key=lambda slot: slot.score, reverse=True)
        over = [slot.output[-1] in rules.end_ids or length == rules.max_tokens for slot in every]
        power = float(length) ** rules.length_penalty
        new = [
            Slot(slot.score / power, slot.output)
            for slot, ends in zip(every[: rules.width], over, strict=False)
            if ends
        ]
        finished = sorted(finished + new, key=lambda slot: slot.score, reverse=True)[: rules.width]
        running = [slot for slot, ends in zip(every, over, strict=True) if not ends][: rules.width]
        full = finished[-1].score > -math.inf
        if not running or (rules.early_stopping is True and full):
            break
        hoped = rules.max_tokens if rules.early_stopping == "never" and rules.length_penalty > 0 else length
        if running[0].score / float(hoped) ** rules.length_penalty <= finished[-1].score:
            break
    return [(slot.score, slot.output) for slot in finished], length


@st.composite
def cases(draw: st.DrawFn) -> tuple[SearchRules, int, Table]:
    vocab_size = draw(st.integers(3, 9))
    end_ids = frozenset(draw(st.sets(st.integers(0, vocab_size - 1), max_size=vocab_size - 2)))
    max_tokens = draw(st.integers(1, 7))
    rules = SearchRules(
        width=draw(st.integers(1, vocab_size - len(end_ids))),
        max_tokens=max_tokens,
        end_ids=end_ids,
        min_tokens=draw(st.integers(0, max_tokens)),
        length_penalty=draw(st.sampled_from([1.0, 0.0, -1.0, 0.5, 2.0, -10.0, 10.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
    )
    grain = draw(st.sampled_from([0.5, 0.015625]))
    return rules, vocab_size, random_table(draw(st.integers(0, 2**20)), vocab_size, grain=grain)


@given(cases())
def test_it_finds_what_brute_force_finds_in_as_many_steps(case: tuple[SearchRules, int, Table]) -> None:
    rules, vocab_size, table = case
    found, steps = search(rules, table)
    expected, expected_steps = plain_search(rules, table, vocab_size)
    assert [output for _, output in found] == [output for _, output in expected]
    assert [rate for rate, _ in found] == pytest.approx([rate for rate, _ in expected])
    assert steps == expected_steps
    assert len(found) == rules.width


@pytest.mark.parametrize("seed", range(5))
def test_a_search_as_wide_as_the_tree_finds_the_best_of_all_outputs(seed: int) -> None:
    table = random_table(seed, 3, grain=0.015625)
    rules = SearchRules(
        width=8, max_tokens=3, end_ids=frozenset([0]), length_penalty=0.0, early_stopping="never"
    )
    ended = [(), *((a,) for a in (1, 2)), *itertools.product((1, 2), repeat=2)]
    outputs = [(*output, 0) for output in ended] + list(itertools.product((1, 2), repeat=3))
    scores = {
        output: sum(table(output[:i])[token_id] for i, token_id in enumerate(output)) for output in outputs
    }
    found, _ = search(rules, table)
    assert [rate for rate, _ in found] == sorted(scores.values(), reverse=True)[:8]
    assert [rate for rate, _ in found] == [scores[output] for _, output in found]


def test_a_width_of_one_is_greedy() -> None:
    table = random_table(1, 9, grain=0.015625)
    found, _ = search(SearchRules(width=1, max_tokens=5), table)
    output: Output = ()
    for _ in range(5):
        row = table(output)
        output = (*output, row.index(max(row)))
    assert found[0][1] == output


def chain(*rows: list[float]) -> Table:
    """Logprobs by length alone; the last row goes on for ever."""
    return lambda output: rows[min(len(output), len(rows) - 1)]


# Token 0 ends. After one step "0" is found at -1; going on costs 0.25 a token.
CHEAP_LATER = chain([-1.0, -1.25, -9.0], [-9.0, -0.25, -9.0])


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "steps", "rate"),
    [
        (True, 1.0, 1, -1.0),
        (False, 1.0, 1, -1.0),
        ("never", 1.0, 6, -2.5 / 6),
        ("never", 0.0, 1, -1.0),
        ("never", -1.0, 1, -1.0),
    ],
)
def test_early_stopping_says_how_long_to_hope(
    early_stopping: bool | Literal["never"], length_penalty: float, steps: int, rate: float
) -> None:
    rules = SearchRules(1, 6, frozenset([0]), length_penalty=length_penalty, early_stopping=early_stopping)
    found, taken = search(rules, CHEAP_LATER)
    assert (taken, found[0][0]) == (steps, pytest.approx(rate))


def test_no_output_ends_before_min_tokens() -> None:
    table = chain([-0.5, -1.0, -2.0])
    for min_tokens in range(5):
        found, _ = search(SearchRules(1, 6, frozenset([0]), min_tokens=min_tokens), table)
        assert found[0][1] == (1,) * min_tokens + (0,)


def test_an_end_outside_the_best_width_is_not_found() -> None:
    # Of the continuations the end is third best, so with a width of two it never counts.
    found, _ = search(SearchRules(2, 3, frozenset([0])), chain([-3.0, -1.0, -2.0, -9.0]))
    assert all(0 not in output for _, output in found)


def test_ties_go_to_the_better_beam_then_to_the_lower_id() -> None:
    found, _ = search(SearchRules(3, 1), chain([-1.0] * 5))
    assert [output for _, output in found] == [(0,), (1,), (2,)]
    found, _ = search(SearchRules(3, 2), chain([-1.0] * 5))
    assert [output for _, output in found] == [(0, 0), (0, 1), (0, 2)]


def test_of_equal_rates_the_output_found_first_stays_ahead() -> None:
    found, _ = search(SearchRules(2, 6, frozenset([0])), chain([-1.0, -1.0, -9.0], [-1.0, -9.0, -9.0]))
    assert found == [(-1.0, (0,)), (-1.0, (1, 0))]


def test_a_beam_that_could_only_equal_what_is_found_is_not_followed() -> None:
    _, steps = search(SearchRules(1, 6, frozenset([0])), chain([-1.0, -1.0, -9.0]))
    assert steps == 1


def test_what_came_with_the_tokens_is_kept() -> None:
    state = BeamSearch(SearchRules(1, 2))
    first = [TokenLogprob(4, -0.5, 1, [(4, -0.5), (5, -1.0)]), TokenLogprob(5, -1.0, 2, [])]
    second = [TokenLogprob(6, -0.25, 1, [(6, -0.25)])]
    state.advance([first])
    state.advance([second])
    assert state.found[0].beam.tokens == (first[0], second[0])
    assert state.found[0].rate == -0.375

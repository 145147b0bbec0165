"""Stop strings match across borders, the same however the text is cut, and nothing of them leaks."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from splitserve.frontend.text.stop_strings import StopMatcher

TEXTS = st.text("abc\n", max_size=40)
STOPS = st.lists(st.text("abc\n", min_size=1, max_size=5), min_size=1, max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read character by character; the longest stop string that ends there wins."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def run(matcher: StopMatcher, pieces: list[str]) -> tuple[str, str | None]:
    shown = ""
    for piece in pieces:
        result = matcher.push(piece)
        shown += result.text
        if result.matched is not None:
            return shown, result.matched
    return shown + matcher.finish(), None


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


@given(text=TEXTS, stops=STOPS, sizes=st.lists(st.integers(0, 4)))
@example(text="abcab", stops=["abca", "bc"], sizes=[1, 1, 1])
@example(text="aab", stops=["ab"], sizes=[1, 1, 1])
def test_any_cut_gives_what_reading_by_character_gives(text: str, stops: list[str], sizes: list[int]) -> None:
    assert run(StopMatcher(stops), cut(text, sizes)) == reference(text, stops)


@given(text=TEXTS, stops=STOPS, sizes=st.lists(st.integers(0, 4)))
def test_what_was_shown_is_never_part_of_a_later_match(text: str, stops: list[str], sizes: list[int]) -> None:
    expected, _ = reference(text, stops)
    matcher, shown = StopMatcher(stops), ""
    for piece in cut(text, sizes):
        result = matcher.push(piece)
        shown += result.text
        assert expected.startswith(shown)
        if result.matched is not None:
            break


@given(text=TEXTS, stops=STOPS, sizes=st.lists(st.integers(0, 4)))
def test_the_stop_string_is_kept_when_asked_for(text: str, stops: list[str], sizes: list[int]) -> None:
    shown, matched = reference(text, stops)
    assert run(StopMatcher(stops, include_in_output=True), cut(text, sizes)) == (
        shown + (matched or ""),
        matched,
    )


def reference_behind(text: str, num_passed: int, stops: list[str]) -> tuple[str, str | None]:
    """The same, where stop strings that end within the first characters do not count."""
    for end in range(num_passed + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(text=TEXTS, stops=STOPS, num_passed=st.integers(0, 40), sizes=st.lists(st.integers(0, 4)))
@example(text="aba", stops=["ab", "ba"], num_passed=2, sizes=[])
@example(text="abx", stops=["abcd", "b"], num_passed=2, sizes=[])
def test_passed_text_takes_part_in_what_is_complete_behind_it(
    text: str, stops: list[str], num_passed: int, sizes: list[int]
) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.pass_over(piece) for piece in cut(text[:num_passed], sizes))
    rest, matched = run(matcher, cut(text[num_passed:], sizes))
    assert (shown + rest, matched) == reference_behind(text, num_passed, stops)


def test_held_text_is_shorter_than_the_longest_stop_string() -> None:
    matcher = StopMatcher(["x" * 200 + "y"])
    shown = "".join(matcher.push("x").text for _ in range(1000))
    assert len(shown) == 800


@pytest.mark.parametrize(("text", "held"), [("foo E", "E"), ("foo EN", "EN"), ("foo ENX", ""), ("EE", "E")])
def test_only_a_possible_beginning_is_held_back(text: str, held: str) -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push(text).text == text.removesuffix(held)
    assert matcher.finish() == held

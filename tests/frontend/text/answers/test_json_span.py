"""The end of a JSON value in a text that goes on behind it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.text.answers.json_span import JsonSpan

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def end_of(pieces: list[str]) -> tuple[int, bool]:
    span, place = JsonSpan(), 0
    for piece in pieces:
        end = span.advance(piece, 0)
        place += end
        if end < len(piece):
            break
    return place, span.done


@given(value=JSON, indent=st.sampled_from([None, 1]), after=st.sampled_from([",", "}", "]", " ", "\n"]))
def test_a_value_ends_where_it_ends(value: object, indent: int | None, after: str) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    assert end_of([text + after]) == (len(text), True)
    assert end_of(list(text + after)) == (len(text), True)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"a": 1</tool_call>', '{"a": 1'),
        ('{"a": [1}}', '{"a": [1'),
        ('"a\\"b" c', '"a\\"b"'),
        ("12, 3", "12"),
        ("null}", "null"),
        ("{'a': 1}", "{"),
    ],
)
def test_a_broken_value_ends_where_it_breaks(text: str, part: str) -> None:
    assert end_of([text]) == (len(part), True)


@pytest.mark.parametrize("text", ['{"a": "', "[1, 2", '"\\', "tru", "{"])
def test_a_value_that_is_cut_off_has_no_end(text: str) -> None:
    assert end_of([text]) == (len(text), False)

"""Summaries come back as they were sealed, and from nobody else's key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.errors import ConfigError, InvalidRequestError
from splitserve.frontend.responses.compaction.summary_seal import SummarySeal, read_seal

KEY = b"k" * 32


@given(st.text(), st.sampled_from([b"", KEY]))
def test_a_summary_comes_back_as_it_was(text: str, key: bytes) -> None:
    assert SummarySeal(key).open(SummarySeal(key).seal(text), "x") == text


@given(st.text(min_size=1, max_size=40), st.data())
def test_one_other_character_is_found(text: str, data: st.DataObject) -> None:
    sealed = SummarySeal(KEY).seal(text)
    # The last characters may hold bits that belong to no byte.
    at = data.draw(st.integers(0, len(sealed) - 5))
    other = data.draw(st.characters(codec="utf-8").filter(lambda each: each != sealed[at]))
    with pytest.raises(InvalidRequestError, match=r"input\[1\] was not made by this server") as caught:
        SummarySeal(KEY).open(sealed[:at] + other + sealed[at + 1 :], "input[1]")
    assert caught.value.param == "input[1]"


@pytest.mark.parametrize(
    "content", ["", "splitserve-summary-1.", "splitserve-summary-1.AAAA", "\ud800", "ü" * 99], ids=ascii
)
def test_what_was_never_sealed_is_refused(content: str) -> None:
    with pytest.raises(InvalidRequestError):
        SummarySeal().open(content, "x")


@pytest.mark.parametrize(("sealed_with", "opened_with"), [(b"", KEY), (KEY, b""), (KEY, b"l" * 32)])
def test_another_key_does_not_open_it(sealed_with: bytes, opened_with: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        SummarySeal(opened_with).open(SummarySeal(sealed_with).seal("text"), "x")


def test_the_key_is_what_the_file_holds_but_for_space_around_it(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"  " + KEY + b"\n")
    assert SummarySeal(KEY).open(read_seal(str(file)).seal("text"), "x") == "text"
    assert SummarySeal().open(read_seal("").seal("text"), "x") == "text"


@pytest.mark.parametrize("held", [None, b"", b"k" * 31 + b"\n\n", b"k" * 4097], ids=str)
def test_a_file_that_holds_no_key_is_refused(tmp_path: Path, held: bytes | None) -> None:
    file = tmp_path / "key"
    if held is not None:
        file.write_bytes(held)
    with pytest.raises(ConfigError, match="--compaction-key-file"):
        read_seal(str(file))

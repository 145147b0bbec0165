"""What an engine writes is shown once: at once, or in the exception that ends with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.offline.engine_output import EngineOutput

ERROR = b"engine-core: error: no such model\n"


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_the_last_error_is_told_and_not_shown(size: int) -> None:
    output = EngineOutput()
    shown = b"".join(output.push(data) for data in cut(b"loading\n" + ERROR, size))
    assert shown == b"loading\n"
    assert output.error() == "no such model"
    assert output.finish() == b""


@pytest.mark.parametrize("size", [1, 1000])
def test_an_error_that_nobody_told_is_shown_at_the_end(size: int) -> None:
    output = EngineOutput()
    assert b"".join(output.push(data) for data in cut(ERROR, size)) == b""
    assert output.finish() == ERROR


def test_an_error_that_is_not_the_last_word_is_shown_in_its_place() -> None:
    output = EngineOutput()
    assert output.push(ERROR) == b""
    assert output.push(b"more\n") == ERROR + b"more\n"
    assert output.error() is None


def test_a_progress_bar_is_shown_before_its_line_ends() -> None:
    output = EngineOutput()
    assert output.push(b"\rweights 10%") == b"\rweights 10%"
    assert output.push(b"\rweights 20%") == b"\rweights 20%"
    assert output.push(b"\n") == b"\n"
    assert list(output.tail) == ["\rweights 10%\rweights 20%"]


def test_what_is_remembered_of_the_output_is_bounded() -> None:
    output = EngineOutput()
    for _ in range(1000):
        assert output.push(b"x" * 1000) == b"x" * 1000
    for _ in range(1000):
        output.push(b"y" * 5000 + b"\n")
    assert len(output._line) <= 2000
    assert (len(output.tail), max(map(len, output.tail))) == (20, 2000)


@given(
    st.lists(st.sampled_from([ERROR, b"engine-core: er", b"\n", b"a", b"bc\n", b"x" * 2100]), max_size=8),
    st.integers(1, 40),
)
def test_everything_is_shown_once_and_in_order(pieces: list[bytes], size: int) -> None:
    data, output = b"".join(pieces), EngineOutput()
    assert b"".join(output.push(part) for part in cut(data, size)) + output.finish() == data

"""Reasoning is dimmed in a terminal and left out elsewhere; control characters do nothing."""

from __future__ import annotations

from io import StringIO

import pytest

from splitserve.client.chat.pieces import Piece
from splitserve.client.chat.screen import Screen, visible

PIECES = [Piece("let me", ""), Piece(" think", ""), Piece("", "So "), Piece("", "yes\x1b]0;title\x07")]


def shown(pieces: list[Piece], *, is_terminal: bool) -> str:
    out = StringIO()
    screen = Screen(out, is_terminal=is_terminal)
    for piece in pieces:
        screen.show(piece)
    screen.end()
    assert screen.content == "".join(piece.content for piece in pieces)
    return out.getvalue()


def test_a_terminal_shows_reasoning_dimmed_and_no_control_character() -> None:
    assert shown(PIECES, is_terminal=True) == "\x1b[2mlet me think\x1b[0m\n\nSo yes␛]0;title␇\n"


def test_elsewhere_there_is_the_content_alone_as_it_came() -> None:
    assert shown(PIECES, is_terminal=False) == "So yes\x1b]0;title\x07\n"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [([Piece("", "a\n")], "a\n"), ([], ""), ([Piece("cut off", "")], "\x1b[2mcut off\x1b[0m\n")],
)
def test_an_answer_ends_with_a_line_and_leaves_nothing_dimmed(pieces: list[Piece], text: str) -> None:
    assert shown(pieces, is_terminal=True) == text


def test_line_ends_and_tabs_stay() -> None:
    assert visible("a\n\tb\r\x9b1m\x7f") == "a\n\tb␍�1m�"

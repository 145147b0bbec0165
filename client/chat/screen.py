"""How are pieces of an answer shown: in a terminal with dimmed reasoning, elsewhere only the content?"""

from __future__ import annotations

import re
from typing import TextIO

from splitserve.client.chat.pieces import Piece

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
# Escape sequences could change the terminal's title, its clipboard, or what is already on it.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Screen:
    """Writes one answer.

    Args:
        out: where to.
        is_terminal: whether it is one: reasoning is shown and dimmed, control characters are made visible.
    """

    def __init__(self, out: TextIO, *, is_terminal: bool) -> None:
        self._out = out
        self._is_terminal = is_terminal
        self._in_reasoning = False
        self._content: list[str] = []
        self._ends_line = True

    @property
    def content(self) -> str:
        """The content so far."""
        return "".join(self._content)

    def show(self, piece: Piece) -> None:
        """Write a piece."""
        if piece.reasoning and self._is_terminal:
            self._write(f"{'' if self._in_reasoning else DIM}{visible(piece.reasoning)}")
            self._in_reasoning = True
        if piece.content:
            self._end_reasoning("\n\n")
            self._content.append(piece.content)
            self._write(visible(piece.content) if self._is_terminal else piece.content)

    def end(self) -> None:
        """Write the end of the answer."""
        self._end_reasoning("")
        if not self._ends_line:
            self._write("\n")

    def _end_reasoning(self, gap: str) -> None:
        if self._in_reasoning:
            self._write(f"{PLAIN}{gap}")
            self._in_reasoning = False

    def _write(self, text: str) -> None:
        self._ends_line = text.endswith("\n")
        self._out.write(text)
        self._out.flush()


def visible(text: str) -> str:
    """Return a text in which control characters do nothing: ESC is shown as U+241B, and so on."""
    return _CONTROLS.sub(lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "�", text)

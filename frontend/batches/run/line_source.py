"""The lines of an input file, one after the other, of which a piece at a time is in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple

from splitserve.frontend.batches.store.files import StoredFiles
from splitserve.frontend.batches.store.tables import Key


class Line(NamedTuple):
    """A line that is not blank.

    Attributes:
        number: of the line in the file, from 1.
        data: without its end; b"" if it is too long.
    """

    number: int
    data: bytes


async def read_lines(files: StoredFiles, key: Key, max_bytes: int) -> AsyncGenerator[list[Line], None]:
    """Yield the lines of a file, those of a piece at a time.

    Args:
        files: of the store.
        key: of the file.
        max_bytes: of a line; one that is longer comes without data.
    """
    number, rest, is_long = 0, b"", False
    piece_no = 0
    while (piece := await files.piece(key, piece_no)) is not None:
        piece_no += 1
        *ended, rest = (rest + piece).split(b"\n")
        lines = []
        for data in ended:
            number += 1
            if is_long or len(data) > max_bytes:
                lines.append(Line(number, b""))
            elif data.strip():
                lines.append(Line(number, data))
            is_long = False
        if is_long or len(rest) > max_bytes:
            # The rest of it need not be kept.
            is_long, rest = True, b""
        yield lines
    if is_long or rest.strip():
        yield [Line(number + 1, b"" if is_long else rest)]

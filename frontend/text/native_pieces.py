"""The table of bytes per token id as native code reads it, filled as ids are met."""

from __future__ import annotations

from collections.abc import Callable

from splitserve.frontend._native import FillPiece, load_library


class NativePieces:
    """A table of its own, as native code cannot read a dict; belongs to the event loop.

    Attributes:
        address: of the table, for the lifetime of this object.
    """

    __slots__ = ("_delete", "_fill", "address")

    def __init__(self, find: Callable[[int], bytes], limit: int) -> None:
        """Make an empty table.

        Args:
            find: bytes of a token id; called once per id.
            limit: ids below it have bytes, all others have none.
        """
        library = load_library()
        set_piece = library.pieces_set

        def fill(token_id: int) -> None:
            data = find(token_id)
            set_piece(address, token_id, data, len(data))

        # Kept, as the table calls it.
        self._fill = FillPiece(fill)
        self._delete = library.pieces_delete
        self.address: int = library.pieces_new(limit, self._fill)
        address = self.address

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._delete(self.address)

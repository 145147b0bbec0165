"""Which blocks of known tokens are being filled right now, and by which row?

A row that computes known tokens announces the chain hash of the next block that will be indexed for it.
Whoever is about to be admitted and lacks just this block may wait for it instead of computing it too.
"""

from __future__ import annotations

from splitserve.engine_core.errors import IntegrityError


class AnnouncedBlocks:
    """At most one chain hash per row; of several rows that fill equal blocks the first counts."""

    def __init__(self) -> None:
        self._hash_of: dict[int, bytes] = {}
        self._row_of: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Rows that announce a block."""
        return len(self._hash_of)

    def __contains__(self, row: int) -> bool:
        return row in self._hash_of

    def announce(self, row: int, block_hash: bytes) -> None:
        """Name the block that a row fills next, in place of what it announced before."""
        self.withdraw(row)
        self._hash_of[row] = block_hash
        self._row_of.setdefault(block_hash, row)

    def withdraw(self, row: int) -> None:
        """Forget what a row announced, if anything."""
        block_hash = self._hash_of.pop(row, None)
        if block_hash is not None and self._row_of[block_hash] == row:
            del self._row_of[block_hash]
            # Others may be filling an equal block; rare, so they are looked for only now.
            for other, theirs in self._hash_of.items():
                if theirs == block_hash:
                    self._row_of[block_hash] = other
                    break

    def row_of(self, block_hash: bytes) -> int | None:
        """Return the row that fills this block, None when nobody does."""
        return self._row_of.get(block_hash)

    def clear(self) -> None:
        """Forget all of it."""
        self._hash_of.clear()
        self._row_of.clear()

    def check_integrity(self, next_hashes: dict[int, bytes | None]) -> None:
        """Compare with what rows fill next.

        Args:
            next_hashes: by row in use; None when its next block is not of known tokens.

        Raises:
            IntegrityError: a row announces something else, or a hash names a wrong row.
        """
        for row, block_hash in self._hash_of.items():
            if next_hashes.get(row) != block_hash:
                raise IntegrityError(f"row {row} announces a block that it does not fill next")
        if set(self._row_of) != set(self._hash_of.values()):
            raise IntegrityError("announced blocks: row -> hash and hash -> row disagree")
        for block_hash, row in self._row_of.items():
            if self._hash_of.get(row) != block_hash:
                raise IntegrityError(f"an announced block names row {row}, which fills another")

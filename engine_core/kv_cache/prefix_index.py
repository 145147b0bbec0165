"""Which block holds the KV of which token prefix? Prefixes are named by the hashes of block_hash.py."""

from __future__ import annotations

from hashlib import sha256

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kept.ledger import Ledger


class PrefixIndex:
    """Maps chain hashes to block ids, one to one; never larger than the pool.

    Args:
        secret: seeds the namespaces.
        ledger: where the engine's successor finds the same; begun with this secret. None for no successor.
    """

    def __init__(self, secret: bytes, ledger: Ledger | None = None) -> None:
        self._secret = secret
        self._ledger = ledger
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def namespace(self, tenant: str, cache_salt: str, adapter_key: str = "") -> bytes:
        """Return the 32 bytes a chain of this tenant, salt and adapter starts from."""
        parts = [self._secret]
        for text in (tenant, cache_salt, adapter_key):
            raw = text.encode("utf-8", "surrogatepass")
            # The length keeps ("ab", "c") apart from ("a", "bc").
            parts += [len(raw).to_bytes(8, "little"), raw]
        return sha256(b"".join(parts)).digest()

    def lookup(self, block_hash: bytes) -> int | None:
        """Return the block that holds this prefix's last block, None when there is none."""
        return self._block_of.get(block_hash)

    def restore(self, hash_of: dict[int, bytes]) -> None:
        """Register the blocks that the ledger has; nothing else is registered yet."""
        self._hash_of = dict(hash_of)
        self._block_of = {block_hash: block_id for block_id, block_hash in hash_of.items()}

    def insert(
        self, block_hashes: list[bytes], block_ids: list[int], *, are_filled: bool = True
    ) -> list[int]:
        """Register blocks.

        Args:
            block_hashes: chain hash of each.
            block_ids: of blocks that hold no prefix yet.
            are_filled: whether the worker has said so; else they do not enter the ledger.

        Returns:
            Those that now serve their prefix, leaving out prefixes served already.
        """
        assert self._hash_of.keys().isdisjoint(block_ids), "a block holds one prefix"
        serving = map(self._block_of.setdefault, block_hashes, block_ids)
        entries = zip(block_hashes, block_ids, serving, strict=True)
        inserted = {block_id: block_hash for block_hash, block_id, server in entries if server == block_id}
        self._hash_of.update(inserted)
        if self._ledger is not None and are_filled:
            self._ledger.enter(inserted)
        return list(inserted)

    def forget(self, block_id: int) -> bytes:
        """Drop an evicted block; returns its hash."""
        block_hash = self._hash_of.pop(block_id)
        del self._block_of[block_hash]
        if self._ledger is not None:
            self._ledger.forget(block_id)
        return block_hash

    def reset(self) -> None:
        """Forget every prefix and change the secret, so that chains begun earlier cannot hit again."""
        self._block_of.clear()
        self._hash_of.clear()
        self._secret = sha256(b"next" + self._secret).digest()
        if self._ledger is not None:
            self._ledger.begin(self._secret)

    def block_ids(self) -> set[int]:
        """Return the blocks that hold an indexed prefix."""
        return set(self._hash_of)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless both directions agree."""
        if {block: key for key, block in self._block_of.items()} != self._hash_of:
            raise IntegrityError("prefix index: hash -> block and block -> hash disagree")

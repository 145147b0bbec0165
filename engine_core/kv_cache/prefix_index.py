"""Which block holds the KV of which token prefix: a chain of SHA-256 over full blocks.

hash[0] = SHA-256(namespace, tokens of block 0) and hash[i] = SHA-256(hash[i-1], tokens of block i), so one
hash names the whole prefix. A namespace is derived from a secret of this process, the tenant and the cache
salt: tenants never share blocks, and nobody outside can search for a collision. Equal hashes mean equal
tokens and equal namespaces (SHA-256 has no known collision), so a hit needs no second comparison.
"""

from __future__ import annotations

from hashlib import sha256

from splitserve.engine_core.errors import IntegrityError


class PrefixIndex:
    """Maps chain hashes to block ids, one to one; never larger than the pool."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def namespace(self, tenant: str, cache_salt: str) -> bytes:
        """Return the 32 bytes a chain of this tenant and salt starts from."""
        parts = [self._secret]
        for text in (tenant, cache_salt):
            raw = text.encode("utf-8", "surrogatepass")
            # The length keeps ("ab", "c") apart from ("a", "bc").
            parts += [len(raw).to_bytes(8, "little"), raw]
        return sha256(b"".join(parts)).digest()

    def lookup(self, block_hash: bytes) -> int | None:
        """Return the block that holds this prefix's last block, None when there is none."""
        return self._block_of.get(block_hash)

    def insert(self, block_hashes: list[bytes], block_ids: list[int]) -> list[int]:
        """Register blocks; returns those that now serve their prefix, leaving out prefixes served already."""
        assert self._hash_of.keys().isdisjoint(block_ids), "a block holds one prefix"
        serving = map(self._block_of.setdefault, block_hashes, block_ids)
        entries = zip(block_hashes, block_ids, serving, strict=True)
        inserted = {block_id: block_hash for block_hash, block_id, server in entries if server == block_id}
        self._hash_of.update(inserted)
        return list(inserted)

    def forget(self, block_id: int) -> bytes:
        """Drop an evicted block; returns its hash."""
        block_hash = self._hash_of.pop(block_id)
        del self._block_of[block_hash]
        return block_hash

    def reset(self) -> None:
        """Forget every prefix and change the secret, so that chains begun earlier cannot hit again."""
        self._block_of.clear()
        self._hash_of.clear()
        self._secret = sha256(b"next" + self._secret).digest()

    def block_ids(self) -> set[int]:
        """Return the blocks that hold an indexed prefix."""
        return set(self._hash_of)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless both directions agree."""
        if {block: key for key, block in self._block_of.items()} != self._hash_of:
            raise IntegrityError("prefix index: hash -> block and block -> hash disagree")


def chain_hash(parent: bytes, token_ids: bytes | bytearray) -> bytes:
    """Return the 32 bytes of a block with these tokens behind the prefix, or namespace, `parent`."""
    return sha256(parent + token_ids).digest()


def extend_chain(
    hashes: list[bytes], namespace: bytes, token_ids: bytearray, num_blocks: int, block_bytes: int
) -> None:
    """Append chain hashes until `hashes` covers the first num_blocks blocks.

    Args:
        hashes: hashes of the first blocks, extended in place.
        namespace: what the chain starts from.
        token_ids: int32 column of the sequence, at least num_blocks blocks long.
        num_blocks: full blocks to cover.
        block_bytes: bytes one block of token ids takes in the column.
    """
    parent = hashes[-1] if hashes else namespace
    for start in range(len(hashes) * block_bytes, num_blocks * block_bytes, block_bytes):
        parent = chain_hash(parent, token_ids[start : start + block_bytes])
        hashes.append(parent)

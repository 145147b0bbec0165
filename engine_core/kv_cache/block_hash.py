"""The name of a token prefix: a chain of SHA-256 over its full blocks.

hash[0] = SHA-256(namespace, tokens of block 0) and hash[i] = SHA-256(hash[i-1], tokens of block i), so one
hash names the whole prefix. A namespace is derived from a secret of this process, the tenant, the cache salt
and the adapter: tenants and adapters never share blocks, and nobody outside can search for a collision. Equal
hashes mean equal tokens and equal namespaces (SHA-256 has no known collision), so a hit needs no second
comparison.

Layers with a window, beside others that see all tokens, keep the same tokens in blocks of their own, one for
each group of them. Such a block is named by the hash and the number of the group behind it, so it is longer
than a hash and never taken for one.
"""

from __future__ import annotations

from hashlib import sha256


def chain_hash(parent: bytes, token_ids: bytes | bytearray) -> bytes:
    """Return the 32 bytes of a block with these tokens behind the prefix, or namespace, `parent`."""
    return sha256(parent + token_ids).digest()


def group_names(hashes: list[bytes], num_window_groups: int) -> list[bytes]:
    """Return the names of the blocks of all window groups, those of the first hash first."""
    suffixes = [bytes((group,)) for group in range(1, num_window_groups + 1)]
    return [block_hash + suffix for block_hash in hashes for suffix in suffixes]


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

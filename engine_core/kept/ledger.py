"""Which prefixes do the blocks of the workers' KV cache hold? Written down where a successor reads it.

The memory has no name in any folder: the engine makes it, its workers inherit the descriptor, and a successor
opens it by way of theirs. So it is there exactly as long as the KV cache that it describes.

bytes            what                          written
0..7             kind and edition              by begin(), first to zero and last
8..23            number of blocks, block size  by begin()
24..55           secret of the prefix hashes   by begin()
64..64+n         per block: 0 or its mark      after its hash; 0 before anything else may use the block
the next 32 * n  per block: the chain hash     by enter()

A mark is 1; of a block of a window group, whose name is a hash and the number of the group behind it, it is 1
and that number.

A process that is killed stops between two of its writes, and others see them in order. A mark is one byte: so
a block never counts with half a hash, or with contents other than its hash says. The engine marks a block
when the step that filled it has been applied, and takes the mark back when it plans, before it sends, the
step that overwrites it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from itertools import compress
from typing import NamedTuple

from splitserve.engine_core.kept.processes import ProcessName

SECRET_BYTES = HASH_BYTES = 32
_KIND = b"SSKVLDG1"
_SIZES = struct.Struct("<QQ")
_SIZES_AT, _SECRET_AT, _MARKS_AT = 8, 24, 64
_NAME = "splitserve-ledger"


class HeldPrefixes(NamedTuple):
    """What a KV cache holds.

    Attributes:
        secret: that the hashes start from.
        hash_of: chain hash by block, or the name of a block of a window group; none twice.
    """

    secret: bytes
    hash_of: dict[int, bytes]


class Ledger:
    """The table of one engine's blocks; used by the busy loop's thread.

    Args:
        descriptor: of the memory; close() closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._hashes_at = 0

    @classmethod
    def create(cls) -> Ledger:
        """Make an empty one.

        Raises:
            OSError: there is no memory for it, or the system has no such thing.
        """
        return cls(os.memfd_create(_NAME, os.MFD_CLOEXEC))

    @classmethod
    def of_worker(cls, worker: ProcessName, descriptor: int) -> Ledger | None:
        """Open the one that a worker holds; None if that is not one."""
        path = f"/proc/{worker.pid}/fd/{descriptor}"
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(f"/memfd:{_NAME}"):
                return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return None

    def open(self, num_blocks: int, block_size: int) -> HeldPrefixes | None:
        """Map it for a KV cache of this size, and return what it says of one; None if it says nothing.

        Raises:
            OSError: there is no memory for it.
        """
        self._hashes_at = _MARKS_AT + num_blocks
        num_bytes = self._hashes_at + HASH_BYTES * num_blocks
        fits = os.fstat(self.descriptor).st_size == num_bytes
        if not fits:
            os.ftruncate(self.descriptor, 0)
            os.ftruncate(self.descriptor, num_bytes)
        self._map = memory = mmap.mmap(self.descriptor, num_bytes)
        if memory[: len(_KIND)] != _KIND or memory[_SIZES_AT:_SECRET_AT] != _SIZES.pack(
            num_blocks, block_size
        ):
            memory[_SIZES_AT:_SECRET_AT] = _SIZES.pack(num_blocks, block_size)
            return None
        return HeldPrefixes(memory[_SECRET_AT : _SECRET_AT + SECRET_BYTES], self._read_hashes(memory))

    def begin(self, secret: bytes) -> None:
        """Start anew with no block that counts."""
        memory = self._map
        assert memory is not None, "it has been opened"
        memory[: len(_KIND)] = bytes(len(_KIND))
        memory[_MARKS_AT : self._hashes_at] = bytes(self._hashes_at - _MARKS_AT)
        memory[_SECRET_AT : _SECRET_AT + SECRET_BYTES] = secret
        memory[: len(_KIND)] = _KIND

    def enter(self, hash_of: dict[int, bytes]) -> None:
        """Note what blocks hold that do not count so far."""
        memory, hashes_at = self._map, self._hashes_at
        assert memory is not None, "it has been opened"
        for block_id, block_hash in hash_of.items():
            at = hashes_at + HASH_BYTES * block_id
            memory[at : at + HASH_BYTES] = block_hash[:HASH_BYTES]
            memory[_MARKS_AT + block_id] = 1 + sum(block_hash[HASH_BYTES:])

    def forget(self, block_id: int) -> None:
        """Note that a block is to hold something else; it need not have counted."""
        memory = self._map
        assert memory is not None, "it has been opened"
        memory[_MARKS_AT + block_id] = 0

    def clear(self) -> None:
        """Note that the workers and their KV cache are gone: no block counts, the secret stays."""
        if self._map is not None:
            self._map[_MARKS_AT : self._hashes_at] = bytes(self._hashes_at - _MARKS_AT)

    def close(self) -> None:
        """Let go of it; its contents stay while a worker has it."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _read_hashes(self, memory: mmap.mmap) -> dict[int, bytes]:
        block_of: dict[bytes, int] = {}
        marks = memory[_MARKS_AT : self._hashes_at]
        for block_id in compress(range(len(marks)), marks):
            at = self._hashes_at + HASH_BYTES * block_id
            group = marks[block_id] - 1
            name = memory[at : at + HASH_BYTES] + bytes((group,) if group else ())
            if block_of.setdefault(name, block_id) != block_id:
                memory[_MARKS_AT + block_id] = 0
        return {block_id: block_hash for block_hash, block_id in block_of.items()}

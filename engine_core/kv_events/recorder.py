"""What has happened to the prefix cache since the last batch of events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import unpack_from

from splitserve.engine_core.kv_events.format import (
    MEDIUM_CPU,
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    ExtraKeys,
    KVEvent,
    external_hash,
)
from splitserve.engine_core.request import TOKEN_BYTES, Request

HASH_BYTES = 32


@dataclass(slots=True)
class _Block:
    """A block that one medium or both hold: what an event has to say of it."""

    parent: int | None
    token_ids: bytes
    extra_keys: ExtraKeys | None
    lora_name: str | None
    num_media: int = 0


class KVEventRecorder:
    """Told by the KV manager and the offload tier, emptied by whoever publishes; used by the engine's thread.

    Holds what the steps since the last take() have stored and evicted, so its owner bounds it. With a
    tier also the tokens of every cached block, for when it moves, about 300 bytes for each.

    Args:
        block_size: tokens per block.
        has_offload_tier: whether saved() and dropped() will be called.
    """

    def __init__(self, block_size: int, *, has_offload_tier: bool = False) -> None:
        self._block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        self._has_offload_tier = has_offload_tier
        self._blocks: dict[bytes, _Block] = {}
        # Of a predecessor: their tokens are not known, so nothing can be said of them.
        self._untold_in_pool: set[bytes] = set()
        self._untold_in_tier: set[bytes] = set()
        # Nothing is cached before the first event: whoever heard of an earlier engine has to forget that.
        self._events: list[KVEvent] = [AllBlocksCleared()]

    def stored(self, request: Request, first: int, end: int) -> None:
        """Note that the full blocks first..end-1 of a request can be found in the pool from now on.

        Args:
            request: has the hashes and tokens of these blocks.
            first: index in its sequence.
            end: index behind the last one, greater than first.
        """
        hashes = request.block_hashes
        self._events.append(
            BlockStored(
                block_hashes=list(map(external_hash, hashes[first:end])),
                parent_block_hash=external_hash(hashes[first - 1]) if first else None,
                token_ids=_unpack(request.token_ids, first * self._block_size, end * self._block_size),
                block_size=self._block_size,
                lora_id=None,
                medium=MEDIUM_GPU,
                lora_name=_adapter_of(request),
                extra_keys=None if first else _extra_keys(request, end),
            )
        )
        if self._has_offload_tier:
            for block_idx in range(first, end):
                self._remember(request, block_idx)

    def restored(self, block_hashes: Iterable[bytes]) -> None:
        """Note that the pool holds blocks of a predecessor, of which nobody is told."""
        self._untold_in_pool.update(filter(_is_hash, block_hashes))

    def removed(self, block_hashes: list[bytes]) -> None:
        """Note that blocks were evicted from the pool; those saved to the offload tier are told of before."""
        if told := _leave_out(list(filter(_is_hash, block_hashes)), self._untold_in_pool):
            self._remove(told, MEDIUM_GPU)

    def saved(self, block_hash: bytes) -> None:
        """Note that a block of the pool can be found in the CPU offload tier too from now on."""
        if not _is_hash(block_hash):
            return
        if block_hash in self._untold_in_pool:
            self._untold_in_tier.add(block_hash)
            return
        block = self._blocks[block_hash]
        block.num_media += 1
        self._events.append(
            BlockStored(
                block_hashes=[external_hash(block_hash)],
                parent_block_hash=block.parent,
                token_ids=_unpack(block.token_ids, 0, self._block_size),
                block_size=self._block_size,
                lora_id=None,
                medium=MEDIUM_CPU,
                lora_name=block.lora_name,
                extra_keys=block.extra_keys,
            )
        )

    def dropped(self, block_hash: bytes) -> None:
        """Note that the CPU offload tier has given up a block."""
        if _is_hash(block_hash) and _leave_out([block_hash], self._untold_in_tier):
            self._remove([block_hash], MEDIUM_CPU)

    def cleared(self) -> None:
        """Note that every prefix was forgotten; what happened before no longer matters."""
        self._events = [AllBlocksCleared()]
        self._blocks.clear()
        self._untold_in_pool.clear()
        self._untold_in_tier.clear()

    def take(self) -> list[KVEvent]:
        """Return the events since the last call, the first one first."""
        events, self._events = self._events, []
        return events

    def _remember(self, request: Request, block_idx: int) -> None:
        hashes = request.block_hashes
        block = self._blocks.get(hashes[block_idx])
        if block is None:
            start = block_idx * self._block_bytes
            block = self._blocks[hashes[block_idx]] = _Block(
                parent=external_hash(hashes[block_idx - 1]) if block_idx else None,
                token_ids=bytes(request.token_ids[start : start + self._block_bytes]),
                extra_keys=None if block_idx else _extra_keys(request, 1),
                lora_name=_adapter_of(request),
            )
        block.num_media += 1

    def _remove(self, block_hashes: list[bytes], medium: str) -> None:
        hashes = list(map(external_hash, block_hashes))
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved) and last.medium == medium:
            last.block_hashes.extend(hashes)
        else:
            self._events.append(BlockRemoved(hashes, medium))
        for block_hash in block_hashes if self._has_offload_tier else ():
            block = self._blocks[block_hash]
            block.num_media -= 1
            if not block.num_media:
                del self._blocks[block_hash]


def _is_hash(name: bytes) -> bool:
    """Whether this names a prefix, not a block that a window group keeps: nobody is told of these."""
    return len(name) == HASH_BYTES


def _leave_out(block_hashes: list[bytes], untold: set[bytes]) -> list[bytes]:
    """Return the blocks that somebody was told of, and forget the others."""
    if not untold:
        return block_hashes
    told = [block_hash for block_hash in block_hashes if block_hash not in untold]
    untold.difference_update(block_hashes)
    return told


def _unpack(token_ids: bytes | bytearray, first: int, end: int) -> tuple[int, ...]:
    # A third less time than by way of an array, as nothing is copied first.
    return unpack_from(f"<{end - first}i", token_ids, first * TOKEN_BYTES)


def _adapter_of(request: Request) -> str | None:
    return None if request.adapter is None else request.adapter.name


def _extra_keys(request: Request, num_blocks: int) -> ExtraKeys | None:
    """Return what the hash of a sequence's first block depends on beside its tokens, in vLLM's form."""
    if request.tenant:
        keys: tuple[str, ...] = (request.cache_salt, request.tenant)
    elif request.cache_salt:
        keys = (request.cache_salt,)
    else:
        return None
    return [keys, *[None] * (num_blocks - 1)]

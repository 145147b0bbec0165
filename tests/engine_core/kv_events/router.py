"""A router as others would write it: keeps account of one engine's cache from payloads alone.

Its structs are written after the public format, not imported from the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec


class Event(msgspec.Struct, tag=True, omit_defaults=True):
    pass


class BlockStored(Event, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(Event, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event, tag="AllBlocksCleared"):
    pass


class EventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int


class Block(NamedTuple):
    """What is known of one stored block; `keys` only of one that begins a sequence."""

    parent: int | None
    token_ids: tuple[int, ...]
    keys: tuple[str, ...]


_decoder = msgspec.msgpack.Decoder(EventBatch, strict=True)


class Router:
    """Applies payloads in order and refuses what contradicts the ones before."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[int, Block]] = {}
        self.num_removed = 0

    def hear(self, payload: bytes) -> EventBatch:
        batch = _decoder.decode(payload)
        assert batch.data_parallel_rank == 0
        for event in batch.events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for block_hash in event.block_hashes:
                        # A KeyError is a block that was never stored, or removed twice.
                        del self.stored[str(event.medium)][block_hash]
                        self.num_removed += 1
                case AllBlocksCleared():
                    self.stored.clear()
        return batch

    def hashes(self, medium: str) -> set[int]:
        return set(self.stored.get(medium, ()))

    def num_cached_blocks(self, token_ids: Sequence[int], block_size: int, keys: tuple[str, ...] = ()) -> int:
        """How many of a prompt's first blocks the engine's pool holds, found by tokens as routers do."""
        blocks = self.stored.get("GPU", {})
        children = {
            (block.parent, block.token_ids, block.keys): block_hash for block_hash, block in blocks.items()
        }
        parent: int | None = None
        for place in range(len(token_ids) // block_size):
            tokens = tuple(token_ids[place * block_size : (place + 1) * block_size])
            found = children.get((parent, tokens, keys if place == 0 else ()))
            if found is None:
                return place
            parent = found
        return len(token_ids) // block_size

    def _store(self, event: BlockStored) -> None:
        assert event.lora_id is None
        size, count = event.block_size, len(event.block_hashes)
        assert count > 0
        assert len(event.token_ids) == size * count
        keys = event.extra_keys or [None] * count
        assert len(keys) == count
        assert event.parent_block_hash is None or event.extra_keys is None
        blocks = self.stored.setdefault(str(event.medium), {})
        parent = event.parent_block_hash
        for place, block_hash in enumerate(event.block_hashes):
            assert block_hash not in blocks, "stored twice"
            tokens = tuple(event.token_ids[place * size : (place + 1) * size])
            blocks[block_hash] = Block(parent, tokens, keys[place] or ())
            parent = block_hash

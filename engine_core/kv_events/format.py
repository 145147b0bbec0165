"""The wire format of a batch of KV events: vLLM's KVEventBatch, which routers already understand.

A payload is msgpack: an array [seconds, events, data parallel rank] of events that are maps with their kind
under "type". vLLM publishes these since 0.24 (older releases had arrays in place of the maps), see
vllm/distributed/kv_events.py. Fields that have no meaning here are left out where vLLM leaves them out, and
None where it always sends them.
"""

from __future__ import annotations

import struct
import time

import msgspec

MEDIUM_GPU = "GPU"
"""Names the pool that steps compute in, whatever device that is, as vLLM does."""
MEDIUM_CPU = "CPU"
"""Names the CPU offload tier, as vLLM does."""

ExtraKeys = list[tuple[str, ...] | None]


class BlockStored(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """Consecutive blocks of one sequence can be found now.

    Attributes:
        block_hashes: of the blocks, each of the whole sequence up to its end; see external_hash().
        parent_block_hash: of the block before the first one; None if that begins the sequence.
        token_ids: of all the blocks, block_size for each.
        block_size: tokens per block.
        lora_id: always None, as adapters have no numbers.
        lora_name: of the adapter that changes the model; None for none.
        medium: where the blocks are.
        extra_keys: what beside tokens the first block's hash depends on, one entry per block, None for none:
            (cache salt,) or (cache salt, tenant). Left out if the event does not begin a sequence.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: None
    medium: str
    lora_name: str | None
    extra_keys: ExtraKeys | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """Blocks cannot be found any more."""

    block_hashes: list[int]
    medium: str


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, gc=False):
    """No block can be found any more, in any medium."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Events in the order they happened.

    Attributes:
        ts: seconds since 1970.
        data_parallel_rank: always 0; each engine publishes at addresses of its own.
    """

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int = 0


_encoder = msgspec.msgpack.Encoder()
# A quarter of the time int.from_bytes() takes, and a step may store hundreds of blocks.
_unpack_from = struct.Struct(">Q").unpack_from


def external_hash(block_hash: bytes) -> int:
    """Return the 64 bits by which routers know a block.

    They are the last 8 of its 32 bytes, big-endian. vLLM publishes the same by default, and not all routers
    decode hashes of other types. Of a million blocks two have the same number with probability 3e-8, and what
    comes of that is one wrong guess of a router.
    """
    number: int = _unpack_from(block_hash, 24)[0]
    return number


def encode_batch(events: list[KVEvent]) -> bytes:
    """Return the payload of one message."""
    return _encoder.encode(KVEventBatch(time.time(), events))

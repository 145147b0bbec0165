"""What has happened to the prefix cache since the last batch of events."""

from __future__ import annotations

from engine_core.kv_events.format import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    ExtraKeys,
    KVEvent,
    external_hash,
)
from engine_core.request import TOKEN_BYTES, Request


class KVEventRecorder:
    """Told by the KV manager, emptied by whoever publishes; used by the engine's thread.

    Holds what the steps since the last take() have stored and evicted, so its owner bounds it.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        # Nothing is cached before the first event: whoever heard of an earlier engine has to forget that.
        self._events: list[KVEvent] = [AllBlocksCleared()]

    def stored(self, request: Request, first: int, end: int) -> None:
        """Note that the full blocks first..end-1 of a request can be found from now on.

        Args:
            request: has the hashes and tokens of these blocks.
            first: place in its sequence.
            end: place behind the last one, greater than first.
        """
        hashes = request.block_hashes
        block_bytes = self._block_size * TOKEN_BYTES
        self._events.append(
            BlockStored(
                block_hashes=[external_hash(block_hash) for block_hash in hashes[first:end]],
                parent_block_hash=external_hash(hashes[first - 1]) if first else None,
                token_ids=memoryview(request.token_ids[first * block_bytes : end * block_bytes])
                .cast("i")
                .tolist(),
                block_size=self._block_size,
                lora_id=None,
                medium=MEDIUM_GPU,
                lora_name=None,
                extra_keys=None if first else _extra_keys(request, end),
            )
        )

    def removed(self, block_hashes: list[bytes]) -> None:
        """Note that blocks were evicted."""
        hashes = [external_hash(block_hash) for block_hash in block_hashes]
        if self._events and isinstance(last := self._events[-1], BlockRemoved):
            last.block_hashes.extend(hashes)
        else:
            self._events.append(BlockRemoved(hashes, MEDIUM_GPU))

    def cleared(self) -> None:
        """Note that every prefix was forgotten; what happened before no longer matters."""
        self._events = [AllBlocksCleared()]

    def take(self) -> list[KVEvent]:
        """Return the events since the last call, the first one first."""
        events, self._events = self._events, []
        return events


def _extra_keys(request: Request, num_blocks: int) -> ExtraKeys | None:
    """Return what the hash of a sequence's first block depends on beside its tokens, in vLLM's form."""
    if request.tenant:
        keys: tuple[str, ...] = (request.cache_salt, request.tenant)
    elif request.cache_salt:
        keys = (request.cache_salt,)
    else:
        return None
    return [keys, *[None] * (num_blocks - 1)]

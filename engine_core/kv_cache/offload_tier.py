"""Which prefixes are in host memory, in which slot, and which one is evicted for a new one?

States of a slot:

    state   has a hash  in the order  left by
    free    no          no            add
    held    yes         yes           pin, add (given up for another prefix), clear
    pinned  yes         no            unpin

The least recently stored, loaded or evicted prefix is given up first; one that is about to be loaded is
pinned, so that what its blocks displace from the pool cannot displace it here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_events.recorder import KVEventRecorder


class OffloadTier:
    """Maps chain hashes to slots 0..num_slots-1, one to one.

    Args:
        num_slots: of the tier.
        kv_events: told of every prefix that comes or is given up.
    """

    def __init__(self, num_slots: int, kv_events: KVEventRecorder | None = None) -> None:
        self.num_slots = num_slots
        self._kv_events = kv_events
        self._slot_of: dict[bytes, int] = {}
        self._hash_of: list[bytes | None] = [None] * num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._order: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Slots that hold a prefix."""
        return len(self._slot_of)

    def lookup(self, block_hash: bytes) -> int | None:
        """Return the slot that holds this prefix's last block, None when there is none."""
        return self._slot_of.get(block_hash)

    def touch(self, block_hash: bytes) -> bool:
        """Make a prefix the last to be given up, if it is here; tells whether it is."""
        slot = self._slot_of.get(block_hash)
        if slot is None:
            return False
        if slot in self._order:
            self._order.move_to_end(slot)
        return True

    def add(self, block_hash: bytes) -> int | None:
        """Return a slot for a prefix that is not here, None when every slot is pinned."""
        assert block_hash not in self._slot_of, "a prefix stands in one slot"
        if self._free:
            slot = self._free.pop()
        elif self._order:
            slot, _none = self._order.popitem(last=False)
            old_hash = self._hash_of[slot]
            assert old_hash is not None, "a slot in the order holds a prefix"
            del self._slot_of[old_hash]
            if self._kv_events is not None:
                self._kv_events.dropped(old_hash)
        else:
            return None
        if self._kv_events is not None:
            self._kv_events.saved(block_hash)
        self._slot_of[block_hash] = slot
        self._hash_of[slot] = block_hash
        self._order[slot] = None
        return slot

    def pin(self, slots: Iterable[int]) -> None:
        """Keep held slots from being given up."""
        for slot in slots:
            del self._order[slot]

    def unpin(self, slots: Iterable[int]) -> None:
        """Put pinned slots back, in this order, as the last to be given up."""
        for slot in slots:
            self._order[slot] = None

    def clear(self) -> None:
        """Forget every prefix; nothing is pinned."""
        self._slot_of.clear()
        self._order.clear()
        self._hash_of = [None] * self.num_slots
        self._free = list(range(self.num_slots - 1, -1, -1))

    def check_integrity(self) -> None:
        """Raise IntegrityError unless both directions and the order agree and nothing is pinned."""
        held = {slot: block_hash for slot, block_hash in enumerate(self._hash_of) if block_hash is not None}
        if {slot: block_hash for block_hash, slot in self._slot_of.items()} != held:
            raise IntegrityError("CPU offload tier: hash -> slot and slot -> hash disagree")
        if set(self._order) != set(held):
            raise IntegrityError(
                f"CPU offload tier: slots {set(held) ^ set(self._order)} are pinned or hold nothing"
            )
        if sorted([*self._free, *held]) != list(range(self.num_slots)):
            raise IntegrityError("CPU offload tier: a slot is neither free nor held, or both")

"""How much service has each tenant had? The fair policy's counters, in integer virtual tokens.

Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with weights:
every token computed for a tenant of weight w adds VIRTUAL_UNIT // w to its counter, and whoever has the least
is served next. A prompt is charged whole when it is admitted (less its cached prefix), an output token once
it is computed; what is computed again after a preemption is the engine's doing and costs nothing.

A tenant's counter lives in a slot. Tenants without a request keep theirs until slots run out, so that nobody
gets rid of a debt by leaving for a moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.request import Request
from splitserve.engine_core.scheduler.running import RunningRows

# Counters are int64 and would overflow after 2**43 tokens of one tenant of weight 1: 2.8 years at 100,000 a
# second. A weight's price is exact to MAX_WEIGHT / VIRTUAL_UNIT, a tenth of a percent.
VIRTUAL_UNIT = 2**20
MAX_WEIGHT = 1000
MAX_TENANTS = 1024
# Tenants beyond the limit share one counter, and so one share.
SHARED_SLOT = MAX_TENANTS


class TenantCounters:
    """One counter per tenant, and the charge so far for each running row; used by the engine's thread only.

    Args:
        max_num_seqs: rows of the running batch.
        weights: 1..MAX_WEIGHT by tenant; others have 1.
    """

    def __init__(self, max_num_seqs: int, weights: Mapping[str, int]) -> None:
        self._weights = dict(weights)
        self._virtual = np.zeros(MAX_TENANTS + 1, np.int64)
        self._price = np.full(MAX_TENANTS + 1, VIRTUAL_UNIT, np.int64)
        self._num_open = [0] * (MAX_TENANTS + 1)
        self._slots: dict[str, int] = {}
        self._names: list[str] = [""] * MAX_TENANTS
        # Slots whose tenant has no request, the longest idle first.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._slot_of_row = np.full(max_num_seqs, SHARED_SLOT, np.int64)
        self._charged: npt.NDArray[np.int64] = np.zeros(max_num_seqs, np.int64)

    def __len__(self) -> int:
        """Tenants with a counter of their own."""
        return len(self._slots)

    def open(self, tenant: str) -> int:
        """Count a request that arrived; returns the tenant's slot, which stays until close()."""
        slot = self._slots.get(tenant)
        if slot is None:
            slot = self._assign(tenant)
        self._idle.pop(slot, None)
        self._num_open[slot] += 1
        return slot

    def close(self, slot: int) -> None:
        """Count a request that left its queue or its row."""
        self._num_open[slot] -= 1
        if self._num_open[slot] == 0 and slot != SHARED_SLOT:
            self._idle[slot] = None

    def reopen(self, slot: int) -> None:
        """Count a request that goes from queue to row or back."""
        self._idle.pop(slot, None)
        self._num_open[slot] += 1

    def virtual(self, slot: int) -> int:
        """Return the counter, in virtual tokens."""
        return int(self._virtual[slot])

    def lift(self, slot: int, level: int) -> None:
        """Raise a returning tenant's counter to `level`: time without requests earns no credit."""
        if self._virtual[slot] < level:
            self._virtual[slot] = level

    def admitted(self, request: Request, row: int, num_cached_tokens: int) -> None:
        """Charge the prompt of a request that gets a row, unless it had one before."""
        slot = request.fair_slot
        self.reopen(slot)
        self._slot_of_row[row] = slot
        self._charged[row] = request.num_stored_tokens
        if not request.was_started:
            self._virtual[slot] += (request.num_stored_tokens - num_cached_tokens) * self._price[slot]

    def settle(self, running: RunningRows) -> None:
        """Charge what running rows have computed since the last time; vector operations over the rows."""
        rows = running.order
        new = running.num_computed_tokens[rows] - self._charged[rows]
        grown = new > 0
        if grown.any():
            rows, new = rows[grown], new[grown]
            slots = self._slot_of_row[rows]
            np.add.at(self._virtual, slots, new * self._price[slots])
            self._charged[rows] += new

    def released(self, row: int, num_computed_tokens: int) -> None:
        """Charge the rest of a row that is freed."""
        slot = int(self._slot_of_row[row])
        new = num_computed_tokens - int(self._charged[row])
        if new > 0:
            self._virtual[slot] += new * self._price[slot]
        self._slot_of_row[row] = SHARED_SLOT
        self.close(slot)

    def check_integrity(self, num_open: Mapping[int, int]) -> None:
        """Raise IntegrityError unless the counts of requests in flight are these, by slot."""
        counted = {slot: count for slot, count in enumerate(self._num_open) if count}
        in_flight = {slot: count for slot, count in num_open.items() if count}
        if counted != in_flight:
            slot = min(slot for slot, _count in counted.items() ^ in_flight.items())
            wanted = in_flight.get(slot, 0)
            raise IntegrityError(
                f"tenant slot {slot} counts {self._num_open[slot]} requests, {wanted} are in flight"
            )
        idle = {slot for slot in self._slots.values() if self._num_open[slot] == 0}
        if idle != set(self._idle):
            raise IntegrityError(f"idle tenant slots {sorted(self._idle)} instead of {sorted(idle)}")

    def _assign(self, tenant: str) -> int:
        if len(self._slots) < MAX_TENANTS:
            slot = len(self._slots)
            self._virtual[slot] = 0
        elif self._idle:
            slot, _ = self._idle.popitem(last=False)
            del self._slots[self._names[slot]]
            self._virtual[slot] = 0
        else:
            return SHARED_SLOT
        self._slots[tenant] = slot
        self._names[slot] = tenant
        self._price[slot] = VIRTUAL_UNIT // self._weights.get(tenant, 1)
        return slot

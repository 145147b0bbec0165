"""What failover has done since start, for /metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from splitserve.frontend.engines.connection.displacement import DisplacedBy
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.failover.client_request import ClientRequest

# Upper bounds in seconds of how long sequences wait for an engine.
WAIT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)


@dataclass(slots=True)
class FailoverStats:
    """Counters of one process.

    Attributes:
        migrations: sequences that went on, by why they had to.
        resumed_tokens: tokens they had by then, which the next engine takes as given.
        wait_counts: sequences that went on, by how long they had waited, one per bound and one for the rest.
        wait_sum_s: of these waits.
        changed_numerics: of them, those that went on with other numerics than they began with.
        unsafe_requests: requests that were given up because engines died of them.
        given_up: sequences that ended because no engine went on with them.
    """

    migrations: dict[DisplacedBy, int] = field(default_factory=lambda: dict.fromkeys(DisplacedBy, 0))
    resumed_tokens: int = 0
    wait_counts: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BUCKETS_S) + 1))
    wait_sum_s: float = 0.0
    changed_numerics: int = 0
    unsafe_requests: int = 0
    given_up: int = 0

    def count(self, client: ClientRequest, sequences: Sequence[OpenSequence], now_s: float) -> None:
        """Count sequences of a request that have just gone on at its engine."""
        self.migrations[client.cause] += len(sequences)
        self.wait_counts[bisect_left(WAIT_BUCKETS_S, now_s - client.since_s)] += len(sequences)
        self.wait_sum_s += (now_s - client.since_s) * len(sequences)
        for sequence in sequences:
            self.resumed_tokens += len(sequence.token_ids)
            self.changed_numerics += bool(sequence.token_ids) and client.engine.numerics != client.numerics

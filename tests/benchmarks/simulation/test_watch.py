"""Fair shares by hand, the work of a step by hand, and closed loops that go on after a rejection."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulation.cost_model import CostModel
from benchmarks.simulation.measurements import COMPLETE, REJECTED
from benchmarks.simulation.rows import WorkerRows
from benchmarks.simulation.settings import make_settings
from benchmarks.simulation.sweep import simulate
from benchmarks.simulation.trace import NO_GROUP, Trace
from benchmarks.simulation.watch import FairShares, jain_index
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import Started
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling


def two_tenants(*tenants: int) -> FairShares:
    count = len(tenants)
    ones = np.ones(count, np.int64)
    zeros = np.zeros(count, np.int64)
    return FairShares(
        Trace(np.zeros(count), ones * 10, ones, zeros + NO_GROUP, zeros, np.array(tenants), zeros)
    )


def test_jain_index_of_known_shares() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1)
    assert jain_index(np.array([5.0, 0.0])) == pytest.approx(0.5)
    assert jain_index(np.array([1.0, 3.0])) == pytest.approx(16 / 20)
    assert jain_index(np.zeros(2)) == 1


def test_lag_grows_while_a_tenant_waits_and_ends_when_it_does_not() -> None:
    shares = two_tenants(0, 0, 1, 1)
    for request in range(4):
        shares.waits(request)
    shares.close_interval()
    # Tenant 0 gets 10 prompt tokens and 2 of output, tenant 1 nothing.
    shares.starts(Started(0, 0, 0.0))
    shares.tokens(np.array([0, 0]))
    shares.close_interval()
    assert (shares.mean_jain, shares.max_lag_tokens) == (0.5, 6)
    shares.tokens(np.array([0, 0]))
    shares.close_interval()
    assert shares.max_lag_tokens == 7
    # Tenant 1 has nothing waiting any more, so its lag is over; the next one starts from nothing.
    shares.starts(Started(2, 4, 0.0))
    shares.gave_up(3)
    shares.close_interval()
    shares.waits(3)
    shares.close_interval()
    shares.tokens(np.array([0]))
    shares.close_interval()
    assert shares.max_lag_tokens == 7
    assert shares.total_service.tolist() == [15, 6]


def test_the_work_of_a_step() -> None:
    cost = CostModel(
        step_us=0, prefill_token_us=1, decode_row_us=1e2, context_token_us=1e4, attention_pair_us=1e7
    )
    rows = WorkerRows(2, 2, cost)
    sampling = SequenceSampling(seed=0)
    new_rows = [
        NewRow(0, pack_int32([1] * 9), 9, 8, b"", sampling),
        NewRow(1, pack_int32([1] * 9), 9, 4, b"", sampling),
    ]
    output = rows.run(SchedulerOutput(1, pack_int32([0, 1]), pack_int32([1, 3]), new_rows))
    # Row 0 decodes over 9 tokens; row 1 computes 3 after 4, which attend to 5, 6 and 7.
    assert output.compute_s * 1e6 == pytest.approx(3 + 1e2 + (9 + 7) * 1e4 + 18 * 1e7)
    # Only row 0 has computed its last known token.
    assert output.rows == pack_int32([0])


def test_clients_of_a_closed_loop_go_on_after_a_rejection() -> None:
    values = {"requests": "60", "arrivals": "closed", "clients": "10"}
    bounds = {"max_num_seqs": "1", "max_num_waiting": "1"}
    seen = simulate(make_settings(values | bounds | {"output_tokens": "4", "num_blocks": "500"})).measurements
    assert set(seen.outcome.tolist()) == {COMPLETE, REJECTED}
    # Two of ten find room at first. The eight others come back together a second later.
    assert (seen.sent_s[seen.outcome == REJECTED] == 0).sum() == 8
    assert (seen.sent_s == 1.0).sum() == 8

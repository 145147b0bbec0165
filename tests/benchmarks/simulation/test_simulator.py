"""Exact times of small scenarios, equal runs for equal settings, nothing lost or counted twice."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulation.measurements import COMPLETE, FAILED, OPEN, REJECTED
from benchmarks.simulation.report import make_report, table
from benchmarks.simulation.settings import make_settings
from benchmarks.simulation.simulator import EventClock, Outcome, Simulator
from benchmarks.simulation.sweep import simulate
from benchmarks.simulation.trace import NO_GROUP, Trace

# Powers of two, so that sums of times are exact: 0.5 s a step, 1/64 s a prefill token, 1/8 s a decode row.
EXACT = {
    "step_us": "500000",
    "prefill_token_us": "15625",
    "decode_row_us": "125000",
    "context_token_us": "0",
    "attention_pair_us": "0",
    "depth": "1",
}
SMALL = {
    "requests": "80",
    "num_blocks": "1000",
    "prompt_sigma": "0.7",
    "output_sigma": "0.7",
    "output_tokens": "30",
}
TIGHT = {
    "num_blocks": "120",
    "max_model_len": "1500",
    "max_prompt_tokens": "400",
    "max_output_tokens": "200",
    "watermark_percent": "1",
}
SHARED = {"prefix_groups": "4", "prefix_tokens": "300", "prefix_skew": "1"}
SCENARIOS = {
    "poisson": {"rate": "30"},
    "bursts": {"arrivals": "bursts", "rate": "20", "burst_on_s": "1", "burst_off_s": "4"},
    "closed loop": {"arrivals": "closed", "clients": "12", "think_s": "0.2"},
    "shared prefixes": {"rate": "20", **SHARED},
    "a tight pool": {"rate": "60", **TIGHT},
    "a tight pool, one step in flight": {"rate": "60", "depth": "1", **TIGHT},
    "priorities in a tight pool": {"rate": "60", "policy": "priority", "urgent_share": "0.3", **TIGHT},
    "tenants in a tight pool": {"rate": "60", "tenants": "5", "tenant_skew": "1", **TIGHT},
    "a CPU offload tier behind a tight pool": {
        "rate": "60",
        "num_host_blocks": "300",
        **SHARED,
        **TIGHT,
    },
    "last-in victims": {"rate": "60", "victim": "last", **TIGHT},
    "chunks": {"rate": "20", "max_prefill_tokens": "64", "max_num_batched_tokens": "200"},
}


def make_small_trace(requests: list[tuple[float, int, int]]) -> Trace:
    """(arrival_s, prompt tokens, output tokens) each."""
    arrival_s, prompts, outputs = (np.array(column) for column in zip(*requests, strict=True))
    none = np.zeros(len(requests), np.int64)
    return Trace(arrival_s.astype(np.float64), prompts, outputs, none + NO_GROUP, none, none, none)


def run_exact(requests: list[tuple[float, int, int]], **values: str) -> Outcome:
    settings = make_settings({**EXACT, **values})
    return Simulator(settings, make_small_trace(requests), check_integrity=True).run()


def test_one_request_takes_its_prefill_and_its_decode_steps() -> None:
    seen = run_exact([(1.0, 32, 3)]).measurements
    # Step 1 ends at 1 + 0.5 + 32/64 = 2, the two others take 0.625 each.
    assert seen.started_s.tolist() == [1.0]
    assert seen.first_token_s.tolist() == [2.0]
    assert seen.ended_s.tolist() == [3.25]
    assert seen.gaps.quantiles(np.array([0.0, 1.0])).tolist() == [0.625, 0.625]


def test_a_newcomer_waits_for_the_step_in_flight_and_stalls_the_others() -> None:
    seen = run_exact([(0.0, 32, 3), (0.25, 64, 2)]).measurements
    # 0..1 prefill of 0; 1..2.625 decode of 0 beside the prefill of 1; 2.625..3.375 both decode.
    assert seen.started_s.tolist() == [0.0, 1.0]
    assert seen.first_token_s.tolist() == [1.0, 2.625]
    assert seen.ended_s.tolist() == [3.375, 3.375]
    assert sorted(seen.gaps.quantiles(np.array([0.0, 0.5, 1.0])).tolist()) == [0.75, 0.75, 1.625]


def test_a_prefill_cap_spreads_a_prompt_over_steps() -> None:
    seen = run_exact([(0.0, 64, 1)], max_prefill_tokens="32").measurements
    assert seen.first_token_s.tolist() == [2.0]


def test_the_second_step_in_flight_is_planned_before_the_first_has_ended() -> None:
    seen = run_exact([(0.0, 32, 3), (0.25, 64, 2)], depth="2").measurements
    # The step 1..1.625 was planned at 0, so request 1 waits for the one after it.
    assert seen.started_s.tolist() == [0.0, 1.0]
    assert seen.first_token_s.tolist() == [1.0, 1.625 + 1.625]


def test_requests_beyond_the_queue_are_rejected_and_counted() -> None:
    outcome = run_exact([(0.0, 8, 2)] * 4, max_num_seqs="1", max_num_waiting="1")
    assert outcome.measurements.outcome.tolist() == [COMPLETE, COMPLETE, REJECTED, REJECTED]
    assert make_report(outcome).rejected == 2


def test_goodput_counts_completed_requests_that_met_both_goals() -> None:
    requests = [(0.0, 32, 3), (0.25, 64, 2)]
    shares = [
        make_report(run_exact(requests, ttft_ms=ttft_ms, itl_ms=itl_ms)).goodput_share
        for ttft_ms, itl_ms in (("5000", "2000"), ("1000", "2000"), ("5000", "1000"), ("10", "2000"))
    ]
    assert shares == [1.0, 0.5, 0.5, 0.0]


def test_timeouts_end_requests_as_failed() -> None:
    seen = run_exact([(0.0, 32, 50), (0.0, 32, 2)], timeout_s="4").measurements
    assert seen.outcome.tolist() == [FAILED, COMPLETE]
    assert 4.0 <= seen.ended_s[0] < 5.0


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_request_ends_once_with_all_its_tokens(name: str) -> None:
    outcome = simulate(make_settings({**SMALL, **SCENARIOS[name]}), check_integrity=True)
    seen, trace = outcome.measurements, outcome.trace
    assert not (seen.outcome == OPEN).any()
    assert (seen.outcome == COMPLETE).all()
    assert np.array_equal(seen.num_tokens, trace.output_tokens)
    assert (seen.sent_s <= seen.started_s).all()
    assert (seen.started_s < seen.first_token_s).all()
    assert (seen.first_token_s <= seen.ended_s).all()
    assert outcome.stats.num_free_blocks == outcome.settings.engine.num_blocks
    assert seen.num_preemptions.sum() == outcome.stats.num_preemptions
    assert outcome.shares.total_service.sum() == (
        trace.prompt_tokens.sum() + trace.output_tokens.sum() - seen.num_cached.sum()
    )
    # Without what preemptions waste, each token but the last of a request is computed once, or cached.
    computed = outcome.rows.num_computed_tokens - outcome.rows.num_recomputed_tokens
    assert computed == (trace.prompt_tokens + trace.output_tokens - 1 - seen.num_cached).sum()


def test_a_tight_pool_really_preempts_and_shared_prefixes_really_hit() -> None:
    tight = make_report(simulate(make_settings({**SMALL, **SCENARIOS["a tight pool"]})))
    shared = make_report(simulate(make_settings({**SMALL, **SCENARIOS["shared prefixes"]})))
    assert tight.preemptions >= 5
    assert 0 < tight.recomputed_share < 1
    assert shared.hit_share > 0.3


@pytest.mark.parametrize("name", SCENARIOS)
def test_equal_settings_give_equal_runs(name: str) -> None:
    reports = [make_report(simulate(make_settings({**SMALL, **SCENARIOS[name]}))) for _ in range(2)]
    assert reports[0] == reports[1]


def test_the_digest_sees_another_seed_and_another_cost() -> None:
    values = {**SMALL, "requests": "40"}
    digests = {
        simulate(make_settings({**values, **change})).digest
        for change in ({}, {"seed": "1"}, {"step_us": "6001"}, {"depth": "1"})
    }
    assert len(digests) == 4


def test_a_higher_watermark_preempts_less() -> None:
    reports = [
        make_report(
            simulate(make_settings({**SMALL, **SCENARIOS["a tight pool"], "watermark_percent": percent}))
        )
        for percent in ("0", "40")
    ]
    assert reports[1].preemptions < reports[0].preemptions


def test_the_clock_refuses_to_go_back() -> None:
    clock = EventClock()
    clock.go_to(2.0)
    with pytest.raises(AssertionError, match="never goes back"):
        clock.go_to(1.0)


def test_the_table_names_what_was_measured() -> None:
    text = table(make_report(run_exact([(0.0, 32, 3)])))
    assert "1 completed" in text
    assert "TTFT" in text

"""The tables: medians, ratios to peers of one precision, and no column without figures."""

from __future__ import annotations

from benchmarks.compare import table
from benchmarks.compare.results import LIMIT, Results, Start, Turn

STREAM = {"ttft_p50_ms": 5.0, "itl_p50_ms": 1.0, "itl_p99_ms": 2.0, "client_cores": 0.1, "server_cores": 1.5}


def turns(engine: str, *rates: float, scenario: str = "single") -> list[Turn]:
    details = STREAM if scenario.startswith("c") else {}
    return [Turn(engine, "small", scenario, i, rate, 1.5, details=details) for i, rate in enumerate(rates)]


def test_rates_are_medians_over_the_rounds() -> None:
    measured = (
        turns("splitserve", 90, 100, 950)
        + turns("vllm", 9.96, 50)
        + turns("splitserve", 12345, scenario="c1")
    )
    assert table.rates(measured).splitlines() == [
        "|  | splitserve | vllm |",
        "| --- | --- | --- |",
        "| small, single, tok/s | 100 | 30.0 |",
        "| small, c1, tok/s | 12,345 | - |",
    ]


def test_the_figure_of_prefill_names_its_unit() -> None:
    assert "small, prefill, prompt tok/s" in table.rates(turns("vllm", 1, scenario="prefill"))


def test_ratios_pair_rounds_and_take_the_best_peer_of_each() -> None:
    measured = turns("splitserve", 10, 20, 10) + turns("vllm", 5, 20, 2) + turns("transformers", 2, 2, 10)
    assert table.ratios(measured).splitlines() == [
        "|  | splitserve / vllm | splitserve / transformers | splitserve / best peer |",
        "| --- | --- | --- | --- |",
        "| small, single | 2.00 | 5.00 | 1.00 |",
    ]


def test_ratios_compare_weights_of_equal_precision() -> None:
    measured = (
        turns("splitserve", 10) + turns("splitserve-int8", 30) + turns("llamacpp-q8_0", 20) + turns("vllm", 5)
    )
    head, _, row = table.ratios(measured).splitlines()
    assert head == "|  | splitserve / vllm | splitserve-int8 / llamacpp-q8_0 |"
    assert row == "| small, single | 2.00 | 1.50 |"


def test_adapters_are_compared_with_adapters_and_with_none() -> None:
    measured = turns("splitserve", 10) + turns("splitserve-lora-all", 8)
    measured += turns("vllm", 5) + turns("vllm-lora-all", 2)
    head, _, row = table.ratios(measured).splitlines()
    assert head.split(" | ")[1:] == [
        "splitserve / vllm",
        "splitserve-lora-all / vllm-lora-all",
        "splitserve-lora-all / splitserve",
        "vllm-lora-all / vllm |",
    ]
    assert row == "| small, single | 2.00 | 4.00 | 0.80 | 0.40 |"


def test_the_limit_is_compared_where_it_was_measured() -> None:
    measured = turns("splitserve", 10) + turns(LIMIT, 40) + turns("splitserve", 10, scenario="c1")
    assert table.ratios(measured).splitlines()[2:] == ["| small, single | 0.25 |", "| small, c1 | - |"]


def test_alone_an_engine_has_no_table_of_ratios() -> None:
    assert table.ratios(turns("splitserve", 10)) == ""
    assert table.ratios(turns("vllm", 10)) == ""


def test_what_clients_felt_is_shown_for_scenarios_over_http_only() -> None:
    lines = table.streams(turns("vllm", 1) + turns("vllm", 1, 2, scenario="c16")).splitlines()
    assert lines[2:] == ["| small, c16 | vllm | 5.00 | 1.00 | 2.00 | 0.10 | 1.50 |"]


def test_memory_is_shown_in_mb_with_and_without_weights() -> None:
    results = Results(starts=[Start("vllm", "small", 31.26, 2_000_000_000, 1_600_000_000, 0.004)])
    assert table.servers(results).splitlines()[2:] == ["| small, vllm | 31.3 | 2000 | 1600 | 0.00 |"]


def test_the_report_says_what_was_left_out_and_how_busy_the_machine_was() -> None:
    results = Results({"cores": "2"}, {"vllm": "not installed: setup"}, turns("splitserve", 1))
    text = table.report(results)
    assert text.startswith(
        "cores: 2; load average before turns: 1.5 to 1.5; "
        "cores busy with other work during turns: 0.0 (median)\n"
    )
    assert text.endswith("vllm left out: not installed: setup")
    assert "\n\n\n" not in text

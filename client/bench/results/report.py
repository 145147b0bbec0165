"""The figures of a run as a table, in the form of vLLM's, and as the JSON file that goes with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from splitserve.client.bench.load.measured import Measured
from splitserve.client.bench.plan import Plan
from splitserve.client.bench.results.figures import NAMES, Figures, num_output_tokens
from splitserve.engine_core.errors import ConfigError

WIDTH = 50
Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


def table(plan: Plan, figures: Figures) -> str:
    """Return the table, several lines."""
    limit = plan.traffic.max_concurrency
    rate = plan.traffic.request_rate
    lines = [
        f"{' Serving Benchmark Result ':=^{WIDTH}}",
        _row("Successful requests:", figures.num_completed),
        _row("Failed requests:", figures.num_failed),
        *([_row("Maximum request concurrency:", limit)] if limit is not None else []),
        *([_row("Request rate configured (RPS):", rate)] if not math.isinf(rate) else []),
        _row("Benchmark duration (s):", figures.duration_s),
        _row("Total input tokens:", figures.num_input_tokens),
        _row("Total generated tokens:", figures.num_output_tokens),
        _row("Request throughput (req/s):", figures.request_rps),
        *([_row("Request goodput (req/s):", figures.goodput_rps)] if figures.goodput_rps is not None else []),
        _row("Output token throughput (tok/s):", figures.output_tps),
        _row("Peak output token throughput (tok/s):", figures.peak_output_tps),
        _row("Peak concurrent requests:", float(figures.peak_concurrency)),
        _row("Total token throughput (tok/s):", figures.total_tps),
    ]
    for metric in plan.report.metrics():
        lines += _spread_rows(metric, figures)
    return "\n".join([*lines, "=" * WIDTH])


def _spread_rows(metric: str, figures: Figures) -> list[str]:
    name, title = NAMES[metric]
    spread = figures.spreads[metric]
    return [
        f"{title:-^{WIDTH}}",
        _row(f"Mean {name} (ms):", spread.mean_ms),
        _row(f"Median {name} (ms):", spread.median_ms),
        *(_row(f"P{p:g} {name} (ms):", value) for p, value in spread.percentiles_ms.items()),
    ]


def _row(name: str, value: float) -> str:
    return f"{name:<40} {value:<10}" if isinstance(value, int) else f"{name:<40} {value:<10.2f}"


def result(
    plan: Plan, model: str, figures: Figures, requests: Sequence[Measured], now: datetime
) -> dict[str, Json]:
    """Return the contents of the JSON file, with the keys of vLLM's."""
    found: dict[str, Json] = {
        "date": f"{now:%Y%m%d-%H%M%S}",
        "endpoint_type": plan.server.backend,
        "backend": plan.server.backend,
        "label": plan.report.label or None,
        "model_id": model,
        "tokenizer_id": plan.dataset.tokenizer or model,
        "num_prompts": plan.dataset.num_prompts,
        **plan.report.entries(),
        "request_rate": "inf" if math.isinf(plan.traffic.request_rate) else plan.traffic.request_rate,
        "burstiness": plan.traffic.burstiness,
        "max_concurrency": plan.traffic.max_concurrency,
        "duration": figures.duration_s,
        "completed": figures.num_completed,
        "failed": figures.num_failed,
        "total_input_tokens": figures.num_input_tokens,
        "total_output_tokens": figures.num_output_tokens,
        "request_throughput": figures.request_rps,
        "request_goodput": figures.goodput_rps,
        "output_throughput": figures.output_tps,
        "total_token_throughput": figures.total_tps,
        "max_output_tokens_per_s": figures.peak_output_tps,
        "max_concurrent_requests": figures.peak_concurrency,
    }
    if plan.traffic.ramp_up_strategy != "none":
        found["ramp_up_strategy"] = plan.traffic.ramp_up_strategy
        found["ramp_up_start_rps"] = plan.traffic.ramp_up_start_rps
        found["ramp_up_end_rps"] = plan.traffic.ramp_up_end_rps
    for metric in plan.report.metrics():
        spread = figures.spreads[metric]
        found[f"mean_{metric}_ms"] = spread.mean_ms
        found[f"median_{metric}_ms"] = spread.median_ms
        found[f"std_{metric}_ms"] = spread.std_ms
        found |= {f"p{p:g}_{metric}_ms": value for p, value in spread.percentiles_ms.items()}
    return found | (_details(requests) if plan.report.save_detailed else {})


def _details(requests: Sequence[Measured]) -> dict[str, Json]:
    return {
        "input_lens": [each.num_prompt_tokens for each in requests],
        "output_lens": [0 if each.error else num_output_tokens(each) for each in requests],
        "start_times": [each.start_s for each in requests],
        "ttfts": [each.ttft_s for each in requests],
        "itls": [list(each.itls_s) for each in requests],
        "latencies": [each.latency_s for each in requests],
        "queue_times": [each.queue_s for each in requests],
        "generated_texts": [each.text for each in requests],
        "errors": [each.error for each in requests],
    }


def result_path(plan: Plan, model: str, now: datetime) -> Path:
    """Return where the JSON file is written."""
    name = plan.report.result_filename
    if not name:
        limit = "" if plan.traffic.max_concurrency is None else f"-concurrency{plan.traffic.max_concurrency}"
        base = model.rstrip("/").rpartition("/")[2]
        label = plan.report.label or plan.server.backend
        name = f"{label}-{plan.traffic.request_rate:g}qps{limit}-{base}-{now:%Y%m%d-%H%M%S}.json"
    return Path(plan.report.result_dir) / name


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, and the directories that it is in.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None

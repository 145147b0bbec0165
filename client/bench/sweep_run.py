"""The measurements of a sweep, a line of a table for each, and their files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from splitserve.client.bench.plan import Plan
from splitserve.client.bench.results.figures import Figures
from splitserve.client.bench.results.plot import draw_sweep, load_matplotlib
from splitserve.client.bench.results.report import result, result_path, write_json
from splitserve.client.bench.serve import measure
from splitserve.engine_core.errors import EXIT_FAILED, EXIT_OK

COLUMNS = ("rate", "concurrency", "ok", "failed", "req/s", "tok/s", "TTFT ms", "TPOT ms", "ITL ms", "P99 ITL")


def sweep(points: Sequence[Plan]) -> int:
    """Measure at each point; return the exit code.

    Latencies are medians, but for the last column: the highest percentile that was asked for. With
    --save-result all results are one JSON list; with --plot there is a line per concurrency.

    Raises:
        ConfigError: a file cannot be read or written, or there is no tokenizer.
        ApiError: the server cannot be reached.
    """
    first = points[0]
    if first.report.plot:
        load_matplotlib()
    last = f"P{max(first.report.percentiles()):g} ITL"
    print(_line([*COLUMNS[:-1], last]), flush=True)
    now = datetime.now()
    lines: dict[str, list[tuple[str, Figures]]] = {}
    results = []
    model = ""
    for point in points:
        outcome = measure(point)
        figures, model = outcome.figures, outcome.model
        limit = "none" if point.traffic.max_concurrency is None else str(point.traffic.max_concurrency)
        print(
            _line(
                [f"{point.traffic.request_rate:g}", limit, *_cells(figures, max(point.report.percentiles()))]
            ),
            flush=True,
        )
        lines.setdefault(f"concurrency {limit}", []).append((f"{point.traffic.request_rate:g}/s", figures))
        results.append(result(point, model, figures, outcome.run.requests, now))
    if first.report.save_result:
        path = result_path(first, model, now)
        write_json(path, results)
        print(f"written to {path}", file=sys.stderr)
    if first.report.plot:
        draw_sweep(lines, Path(first.report.plot))
    return EXIT_OK if all(each["completed"] for each in results) else EXIT_FAILED


def _cells(figures: Figures, percentile: float) -> list[str]:
    spreads = figures.spreads
    latencies = [spreads[name].median_ms for name in ("ttft", "tpot", "itl")]
    numbers = [figures.request_rps, figures.output_tps, *latencies, spreads["itl"].percentiles_ms[percentile]]
    return [str(figures.num_completed), str(figures.num_failed), *(f"{number:.2f}" for number in numbers)]


def _line(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:>11}" for cell in cells)

"""Pictures of a run and of a sweep, by matplotlib, which `pip install splitserve[bench]` brings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.simulation.report import Report
from benchmarks.simulation.simulator import Outcome
from benchmarks.simulation.sweep import Point
from splitserve.engine_core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (5.2, 3.4)
# Percentiles at which a distribution is drawn: more points than pixels would only fill the file.
CURVE = np.linspace(0, 1, 501)

METRICS = {
    "goodput_share": "requests that meet the goals, share",
    "goodput_rps": "goodput, requests/s",
    "output_tokens_per_s": "output tokens/s",
    "ttft_p99": "TTFT p99, ms",
    "ttft_p50": "TTFT p50, ms",
    "itl_p99": "ITL p99, ms",
    "itl_max": "longest pause between tokens, ms",
    "hit_share": "tokens found in the prefix cache, share",
    "loaded_blocks": "blocks loaded from the CPU offload tier",
    "preemptions": "preemptions",
    "recomputed_share": "tokens computed again, share",
    "urgent_ttft_p99": "TTFT p99 of the best priority, ms",
    "jain_index": "Jain index of tenants",
}


def metric_of(report: Report, metric: str) -> float:
    """Return one of METRICS."""
    name, _, quantile = metric.rpartition("_")
    if name in ("ttft", "itl"):
        return float(getattr(getattr(report, f"{name}_ms"), quantile))
    if metric == "urgent_ttft_p99":
        return report.classes[0].ttft_ms.p99
    return float(getattr(report, metric))


def draw_run(outcome: Outcome, path: Path) -> None:
    """Draw queue, batch and free blocks over time, and the distributions of TTFT and ITL."""
    figure, panels = _figure(2, 2)
    samples = outcome.series.samples
    times = [sample.time_s for sample in samples]
    _draw_series(panels[0], times, [sample.num_waiting for sample in samples], "waiting requests")
    _draw_series(panels[1], times, [sample.num_running for sample in samples], "running requests")
    _draw_series(panels[2], times, [sample.num_free_blocks for sample in samples], "free KV blocks")
    seen = outcome.measurements
    ttft_s = seen.first_token_s - seen.sent_s
    ttft_s = ttft_s[~np.isnan(ttft_s)]
    _draw_distribution(panels[3], np.quantile(ttft_s, CURVE) if len(ttft_s) else CURVE * 0, "TTFT")
    _draw_distribution(panels[3], outcome.measurements.gaps.quantiles(CURVE), "ITL")
    panels[3].legend()
    _save(figure, path)


def draw_sweep(points: Sequence[Point], x_label: str, metrics: Sequence[str], path: Path) -> None:
    """Draw one panel per metric, with one line per label."""
    figure, panels = _figure(1, len(metrics))
    labels = list(dict.fromkeys(point.label for point in points))
    for panel, metric in zip(panels, metrics, strict=True):
        for label in labels:
            line = [point for point in points if point.label == label]
            values = [metric_of(point.report, metric) for point in line]
            panel.plot([_place(point.x) for point in line], values, marker="o", markersize=3, label=label)
        panel.set_xlabel(x_label)
        panel.set_ylabel(METRICS[metric])
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        if labels != [""]:
            panel.legend(fontsize=8)
    _save(figure, path)


def _place(x: str) -> float | str:
    try:
        return float(x)
    except ValueError:
        return x  # a name, as of a policy, has a place of its own


def _draw_series(panel: Axes, times: Sequence[float], values: Sequence[int], label: str) -> None:
    # About two points per pixel are left: the mean of each `width` samples.
    width = max(1, len(values) // 600)
    count = len(values) // width * width
    means = np.array(values[:count], np.float64).reshape(-1, width).mean(axis=1)
    panel.plot(times[:count:width], means, linewidth=1)
    panel.set_xlabel("simulated time, s")
    panel.set_ylabel(label)
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)


def _draw_distribution(panel: Axes, quantiles_s: np.ndarray, label: str) -> None:
    panel.plot(np.maximum(quantiles_s * 1000, 0.1), CURVE, label=label)
    panel.set_xscale("log")
    panel.set_xlabel("ms")
    panel.set_ylabel("share below")
    panel.grid(alpha=0.3)


def _figure(num_rows: int, num_columns: int) -> tuple[Figure, list[Axes]]:
    try:
        import matplotlib

        matplotlib.use("Agg")
        # Fixed ids and no date, so that the same figures give the same file.
        matplotlib.rcParams["svg.hashsalt"] = "splitserve"
        from matplotlib import pyplot
    except ImportError:
        raise ConfigError("pictures need matplotlib: pip install 'splitserve[bench]'") from None
    size = (PANEL_INCHES[0] * num_columns, PANEL_INCHES[1] * num_rows)
    figure, panels = pyplot.subplots(num_rows, num_columns, figsize=size, squeeze=False)
    return figure, list(panels.flat)


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, metadata=metadata, dpi=100)
    from matplotlib import pyplot

    pyplot.close(figure)

"""Pictures of a run and of a sweep; needs matplotlib, which `splitserve[bench]` brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from splitserve.client.bench.load.run import Run
from splitserve.client.bench.results.figures import Figures
from splitserve.engine_core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES = (11, 4)


def load_matplotlib() -> None:
    """Import matplotlib, before anything is measured that would be lost without it.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'splitserve[bench]'") from None


def draw_run(run: Run, path: Path) -> None:
    """Draw each request over time, and the shares of requests and gaps that are as fast or faster.

    Raises:
        ConfigError: the file cannot be written.
    """
    figure, (timeline, shares) = _figure()
    done = sorted((each for each in run.requests if not each.error), key=lambda each: each.start_s)
    begin_s = done[0].start_s if done else 0.0
    starts = np.array([each.start_s - begin_s for each in done])
    firsts = starts + np.array([each.ttft_s for each in done])
    ends = starts + np.array([each.latency_s for each in done])
    rows = np.arange(len(done))
    timeline.hlines(rows, starts, firsts, colors="tab:orange", label="until the first token")
    timeline.hlines(rows, firsts, ends, colors="tab:blue", label="decode")
    timeline.set(xlabel="seconds", ylabel="request", title="Requests over time")
    timeline.legend(loc="upper left")
    for name, values in (
        ("TTFT", [each.ttft_s for each in done]),
        ("ITL", [itl_s for each in done for itl_s in each.itls_s]),
        ("E2EL", [each.latency_s for each in done]),
    ):
        if values:
            shares.plot(np.sort(values) * 1000, np.arange(1, len(values) + 1) / len(values), label=name)
    shares.set(xlabel="milliseconds", ylabel="share", title="As fast or faster", xscale="log")
    shares.legend()
    _save(figure, path)


def draw_sweep(points: Mapping[str, Sequence[tuple[str, Figures]]], path: Path) -> None:
    """Draw throughput against latency.

    Args:
        points: by name of a line, each point with its label.
        path: of the picture.

    Raises:
        ConfigError: the file cannot be written.
    """
    figure, axes = _figure()
    for each, metric, name in zip(axes, ("ttft", "tpot"), ("TTFT", "TPOT"), strict=True):
        for line, found in points.items():
            latencies = [figures.spreads[metric].median_ms for _, figures in found]
            throughputs = [figures.output_tps for _, figures in found]
            each.plot(latencies, throughputs, "o-", label=line)
            for (label, _), x, y in zip(found, latencies, throughputs, strict=True):
                each.annotate(label, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
        each.set(xlabel=f"median {name}, ms", ylabel="output tokens per second")
        each.legend()
    _save(figure, path)


def _figure() -> tuple[Figure, tuple[Axes, Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained")
    left, right = figure.subplots(1, 2)
    return figure, (left, right)


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from None

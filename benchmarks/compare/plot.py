"""How does tok/s grow with the number of clients? An SVG with one panel per model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.results import Turn, by_round, engines
from benchmarks.compare.scenarios import ONLINE, concurrency_of


def draw(turns: Sequence[Turn], path: Path) -> bool:
    """Write the plot of the scenarios over HTTP; False if there are none."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    online = [turn for turn in turns if turn.scenario in ONLINE]
    models = list(dict.fromkeys(turn.model for turn in online))
    if not models:
        return False
    figure = Figure(figsize=(5 * len(models), 4), layout="constrained")
    FigureCanvasSVG(figure)
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        _panel(axes, model, online)
    # Without a date the file changes only when the figures do.
    figure.savefig(path, format="svg", metadata={"Date": None})
    return True


def _panel(axes: Any, model: str, turns: Sequence[Turn]) -> None:
    for name in engines(turns):
        found = {c: by_round(turns, name, model, c) for c in ONLINE}
        points = [(concurrency_of(c), statistics.median(rate.values())) for c, rate in found.items() if rate]
        if points:
            ours = name in ENGINES and ENGINES[name].ours
            axes.plot(*zip(*points, strict=True), marker="o", linewidth=2.5 if ours else 1.2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks([load.concurrency for load in ONLINE.values()])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set(title=model, xlabel="streams at once", ylabel="output tokens per second")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")

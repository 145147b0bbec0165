r"""The real scheduler, KV manager and admission over traces, without a worker and without waiting.

    python -m benchmarks.simulate rate=20 requests=100000 max_prefill_tokens=256 --picture run.svg
    python -m benchmarks.simulate requests=20000 --sweep rate=10,20,30 \
        --compare max_prefill_tokens=0,256,512 --metrics goodput_share,itl_p99 --picture sweep.svg
    python -m benchmarks.simulate --fit                 # measure the demo model, print its costs
    python -m benchmarks.simulate trace=FILE.jsonl      # a recorded trace; see docs/scheduler.md

Steps take what a cost model says, and the clock jumps from event to event. Equal settings give equal runs;
the last line but one is a hash over all events. Settings are key=value; --help lists them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.simulation.cost_model import CostModel
from benchmarks.simulation.figures import METRICS, draw_run, draw_sweep, metric_of
from benchmarks.simulation.fit import StepTimer, fit
from benchmarks.simulation.report import make_report, table
from benchmarks.simulation.settings import describe_settings, make_settings
from benchmarks.simulation.sweep import Point, parse_axis, parse_pair, simulate, sweep
from splitserve.engine_core.errors import ConfigError

DEMO_MODEL = Path(__file__).parent.parent / "engine_core" / "demo_model"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate",
        description=__doc__,
        epilog="settings and their defaults:\n\n" + describe_settings(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--sweep", metavar="KEY=V,V,...", help="run once per value of a setting")
    parser.add_argument("--compare", metavar="KEY=V,V,...", help="with --sweep: one line per value")
    parser.add_argument("--metrics", default="goodput_share", help=f"of a sweep: {', '.join(METRICS)}")
    parser.add_argument("--picture", type=Path, help="draw to this .svg or .png file")
    parser.add_argument("--json", type=Path, help="write settings and figures to this file")
    parser.add_argument("--check", action="store_true", help="check all bookkeeping after every event; slow")
    parser.add_argument("--fit", action="store_true", help="measure a worker's steps and print its costs")
    parser.add_argument("--model", default=str(DEMO_MODEL), help="with --fit: checkpoint directory")
    parser.add_argument("--threads", type=int, default=0, help="with --fit: 0 is all cores")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    flags = make_parser().parse_intermixed_args(arguments)
    try:
        _check_flags(flags)
        if flags.fit:
            _run_fit(flags)
        elif flags.sweep:
            _run_sweep(flags)
        else:
            _run_once(flags)
    except ConfigError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    return 0


def _check_flags(flags: argparse.Namespace) -> None:
    """Refuse what would fail, or be ignored, only after minutes."""
    if flags.compare and not flags.sweep:
        raise ConfigError("--compare needs --sweep")
    if flags.picture and flags.picture.suffix not in (".svg", ".png"):
        raise ConfigError(f"--picture must end in .svg or .png, got {flags.picture}")
    for metric in flags.metrics.split(","):
        if metric not in METRICS:
            raise ConfigError(f"--metrics must be of {', '.join(METRICS)}, got {metric!r}")


def _run_once(flags: argparse.Namespace) -> None:
    settings = make_settings(dict(map(parse_pair, flags.settings)))
    # Requests form no cycles, and a million of them would be walked again and again.
    gc.disable()
    started_s, cpu_started_s = time.perf_counter(), time.process_time()
    outcome = simulate(settings, check_integrity=flags.check)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_started_s
    gc.enable()
    report = make_report(outcome)
    print(table(report))
    print(
        f"simulated in        {wall_s:.1f} s, {report.requests / wall_s:.0f} requests/s; {cpu_s:.1f} s of CPU"
    )
    if flags.picture:
        draw_run(outcome, flags.picture)
    if flags.json:
        groups = {type(group).__name__.lower(): msgspec.to_builtins(group) for group in settings}
        figures = {"settings": groups, "report": msgspec.to_builtins(report), "cpu_s": cpu_s}
        flags.json.write_text(json.dumps(figures, indent=2) + "\n")


def _run_sweep(flags: argparse.Namespace) -> None:
    x_axis = parse_axis(flags.sweep)
    lines = parse_axis(flags.compare) if flags.compare else None
    metrics = flags.metrics.split(",")
    print("  ".join(f"{name:>20}" for name in (lines.key if lines else "", x_axis.key, *metrics)))
    points: list[Point] = []
    for point in sweep(dict(map(parse_pair, flags.settings)), x_axis, lines):
        points.append(point)
        values = [f"{metric_of(point.report, metric):.4g}" for metric in metrics]
        cells = (point.label.partition("=")[2], point.x, *values)
        print("  ".join(f"{cell:>20}" for cell in cells), flush=True)
    if flags.picture:
        draw_sweep(points, x_axis.key, metrics, flags.picture)
    if flags.json:
        rows = [{"line": p.label, "x": p.x, "report": msgspec.to_builtins(p.report)} for p in points]
        flags.json.write_text(json.dumps({"settings": flags.settings, "points": rows}, indent=2) + "\n")


def _run_fit(flags: argparse.Namespace) -> None:
    # As worker.cli has it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    timer = StepTimer(flags.model, flags.threads, context=512)
    result = fit(timer.measure())
    cost = msgspec.structs.replace(result.cost, move_block_us=timer.move_block_us)
    names = CostModel.__struct_fields__
    print(" ".join(f"{name}={getattr(cost, name):.6g}" for name in names))
    print(f"off by {result.median_error:.0%} in the median, {result.max_error:.0%} at most")
    if flags.json:
        flags.json.write_text(json.dumps(msgspec.to_builtins(cost), indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())

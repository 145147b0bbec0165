"""Where do a streamed token's microseconds go, process by process?

Usage: python -m benchmarks.breakdown [--model DIR] [--streams 1,64] [--seconds 5] [--json FILE]

`splitserve serve` with its defaults serves so many streams of /v1/completions at once; readers that count
bytes open a new one for each that ends. Over a window of a few seconds the engine's counters give the wall
time of a step and the parts of it that the worker computed, waited for the next step, and did something else
(reading and writing messages); /proc gives the CPU time of each process per token.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks.compare.processes import pids
from benchmarks.frontend import BODIES, LIMIT_S, SETTLE_S, ask, cpu_s, started, wait_ready
from benchmarks.startup import free_port

PROCESSES = {
    "worker": "splitserve.worker.cli",
    "engine": "splitserve.engine_core.cli",
    "frontend": "splitserve.frontend.cli",
}
MAX_TOKENS = 512


class Sample(NamedTuple):
    """Counters and clocks at one end of the window, in seconds and pieces."""

    at_s: float
    steps: float
    tokens: float
    compute_s: float
    wait_s: float
    cpu_s: dict[str, float]


def counter(exposition: str, name: str) -> float:
    """Return a counter of /metrics, summed over its labels."""
    pattern = rf"^splitserve:{name}_total(?:\{{.*\}})? ([0-9.e+-]+)$"
    return sum(float(value) for value in re.findall(pattern, exposition, re.MULTILINE))


def role_of(cmdline: bytes) -> str:
    """Return which part of the server a command line starts, "" for its supervisor and others."""
    words = cmdline.decode(errors="replace").split("\0")
    return next((role for role, module in PROCESSES.items() if module in words), "")


def cpu_by_role(server_pid: int) -> dict[str, float]:
    """Return the CPU seconds of the server's processes by the part they are."""
    total = dict.fromkeys(PROCESSES, 0.0)
    for pid in pids(server_pid):
        # A process that has just ended has no files left.
        with contextlib.suppress(OSError):
            role = role_of(Path(f"/proc/{pid}/cmdline").read_bytes())
            if role:
                total[role] += sum(cpu_s(Path(f"/proc/{pid}/stat").read_text()))
    return total


def summarise(begin: Sample, end: Sample) -> dict[str, float]:
    """Return the window's figures by the names of the table's columns; microseconds per step or per token."""
    steps, tokens = end.steps - begin.steps, end.tokens - begin.tokens
    wall_s = end.at_s - begin.at_s
    compute_s, wait_s = end.compute_s - begin.compute_s, end.wait_s - begin.wait_s
    figures = {
        "tokens/s": tokens / wall_s,
        "tokens/step": tokens / steps,
        "step": wall_s / steps * 1e6,
        "compute": compute_s / steps * 1e6,
        "wait": wait_s / steps * 1e6,
        "rest": (wall_s - compute_s - wait_s) / steps * 1e6,
    }
    for role, seconds in end.cpu_s.items():
        figures[f"{role}/token"] = (seconds - begin.cpu_s[role]) / tokens * 1e6
    return figures


def serve_window(model: list[str], num_streams: int, seconds: float) -> dict[str, float]:
    """Serve num_streams streams at once and return the figures of a window of so many seconds."""
    port = free_port()
    serve = [
        "splitserve.engine_core.launcher.cli",
        "serve",
        *model,
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    path, body = BODIES["completions"]
    asked = body | {"max_tokens": MAX_TOKENS, "stream": True, "ignore_eos": True, "temperature": 0}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(serve))
        http = stack.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S, trust_env=False)
        )
        wait_ready(http)
        readers = ["benchmarks.stream_readers", "127.0.0.1", str(port), str(num_streams), path, "--again"]
        load = stack.enter_context(started(readers))
        if ask(load, json.dumps(asked)) != "flowing\n":
            raise RuntimeError("the streams do not flow")
        time.sleep(SETTLE_S)
        begin = _sample(http, server.pid)
        time.sleep(seconds)
        return summarise(begin, _sample(http, server.pid))


def _sample(http: httpx.Client, pid: int) -> Sample:
    text = http.get("/metrics").text
    names = ("engine_steps", "generation_tokens", "worker_compute_seconds", "worker_wait_seconds")
    steps, tokens, compute_s, wait_s = (counter(text, name) for name in names)
    return Sample(time.perf_counter(), steps, tokens, compute_s, wait_s, cpu_by_role(pid))


def main() -> int:
    """Measure and print a line per number of streams."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="", help="checkpoint directory; the demo model when left out")
    parser.add_argument("--streams", default="1,64")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the window")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    for num_streams in map(int, options.streams.split(",")):
        figures = serve_window([options.model] if options.model else [], num_streams, options.seconds)
        row = {"streams": num_streams, **figures, "load": os.getloadavg()[0]}
        if not rows:
            print("  ".join(f"{name:>14}" for name in row))
        print("  ".join(f"{value:14.1f}" for value in row.values()), flush=True)
        rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Do running streams notice that others bring new, hard schemas all the time?

Usage: python -m benchmarks.schema_arrivals MODEL [--streams 16] [--seconds 10] [--rounds 3] [--every-ms 100]

Starts `splitserve serve`, holds streams without a grammar, and measures the times between their tokens in
turns: with nobody else; with a client that sends a short request every so often; and with one whose
requests bring each a schema that the server has not seen, of 100 properties with patterns (about 15
milliseconds to compile). What the last costs beyond the second is the price of the grammars.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.compare.processes import EngineProcess
from benchmarks.startup import free_port, wait_ready

LIMIT_S = 120.0
KINDS = ("alone", "plain requests", "new schemas")
MAX_TOKENS = 320


def hard_schema(number: int) -> dict[str, Any]:
    """A schema that no other equals."""
    texts = {
        f"text_{number}_{i}": {"type": "string", "pattern": f"^[a-z]{{{i % 7},20}}-{i}$"} for i in range(50)
    }
    numbers = {f"number_{number}_{i}": {"type": "integer", "minimum": i, "maximum": 9999} for i in range(50)}
    return {"type": "object", "properties": {**texts, **numbers}, "additionalProperties": False}


class Stream(threading.Thread):
    """A stream that notes when its tokens come, opened again when it ends.

    Answers are short, and the first one is cut at another place in each stream: so the work of a step, which
    grows with the tokens that it attends to, stays the same.
    """

    def __init__(self, port: int, number: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._number = number
        self._lengths = itertools.chain([MAX_TOKENS * (number % 16 + 1) // 16], itertools.repeat(MAX_TOKENS))
        self.answers: list[list[float]] = []

    def run(self) -> None:
        """Read until the process ends."""
        body = {"model": "m", "prompt": f"Stream {self._number}", "ignore_eos": True, "stream": True}
        with contextlib.suppress(OSError, http.client.HTTPException):
            for length in self._lengths:
                response = post(self._port, {**body, "max_tokens": length})
                times: list[float] = []
                self.answers.append(times)
                for line in response:
                    if line.startswith(b"data: {"):
                        times.append(time.perf_counter())


class Arrivals(threading.Thread):
    """Sends a request every so often while the block lasts, each in a thread of its own."""

    def __init__(self, port: int, every_s: float, numbers: Iterator[int] | None) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._every_s = every_s
        self._numbers = numbers
        self._is_over = threading.Event()
        self.statuses: list[int] = []

    def __enter__(self) -> Arrivals:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Send until the block is left."""
        while not self._is_over.wait(self._every_s):
            threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        body: dict[str, Any] = {"model": "m", "prompt": "{", "max_tokens": 2, "ignore_eos": True}
        if self._numbers is not None:
            body["structured_outputs"] = {"json": hard_schema(next(self._numbers))}
        response = post(self._port, body)
        response.read()
        self.statuses.append(response.status)


def post(port: int, body: dict[str, Any]) -> http.client.HTTPResponse:
    """Send a completion request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse()


def gaps_ms(streams: list[Stream], begin_s: float, end_s: float) -> np.ndarray:
    """Times between the tokens of each answer within a window."""
    gaps = []
    for stream in streams:
        for times in list(stream.answers):
            within = np.array([at for at in list(times) if begin_s <= at <= end_s])
            gaps.append(1e3 * np.diff(within))
    return np.concatenate(gaps)


def measure(port: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the 99th percentiles of all rounds by kind."""
    streams = [Stream(port, i) for i in range(args.streams)]
    for stream in streams:
        stream.start()
    time.sleep(3)
    numbers = itertools.count()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn, place in itertools.product(range(args.rounds), range(len(KINDS))):
        kind = KINDS[(turn + place) % len(KINDS)]
        begin_s = time.perf_counter()
        arrivals = Arrivals(port, args.every_ms / 1e3, numbers if kind == "new schemas" else None)
        with contextlib.nullcontext() if kind == "alone" else arrivals:
            time.sleep(args.seconds)
        p50, p99 = np.percentile(gaps_ms(streams, begin_s, time.perf_counter()), [50, 99])
        found[kind].append(float(p99))
        statuses = {status: arrivals.statuses.count(status) for status in set(arrivals.statuses)}
        print(f"round {turn} {kind:<15} p50 {p50:6.1f} ms  p99 {p99:6.1f} ms  answers {statuses}", flush=True)
        time.sleep(1)
    return found


def main() -> None:
    """Parse flags, serve, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every-ms", type=float, default=100)
    args = parser.parse_args()
    port = free_port()
    command = ["splitserve", "serve", args.model, "--port", str(port), "--served-model-name", "m"]
    with tempfile.TemporaryDirectory() as folder:
        server = EngineProcess(command, {}, Path(folder) / "serve.log", pausable=False)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                wait_ready(client, time.monotonic())
            found = measure(port, args)
        finally:
            server.close()
    medians = {kind: float(np.median(values)) for kind, values in found.items()}
    for kind, median in medians.items():
        print(f"{kind:<15} median p99 {median:6.1f} ms, {median / medians['alone']:.3f} of alone")


if __name__ == "__main__":
    main()

"""What do running streams feel over HTTP while long prompts arrive, by --target-itl-ms?

Usage: python -m benchmarks.long_prefill MODEL_DIR [--targets 0,200,50] [--rounds N] [--prompt-tokens N]
           [--prompts N] [--every-s S] [--streams N] [--peer-url URL --peer-model NAME] [--json FILE]

Opens streams of /v1/completions that do not end by themselves, then sends prompts of random token ids, one
each `--every-s` seconds whether or not the last one was answered. ITL is the time between two chunks of one
stream, from the first prompt's arrival until the last prompt's first token; "beside" counts those gaps only
that overlap the time from a prompt's arrival to its first token; TTFT is that of the long prompts. A prompt
of full length warms each server up, and is not measured. Targets take turns (A B C A B C), each turn with a
fresh server; a peer, any server with OpenAI's API that runs already, is one more turn. The table has medians
over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from benchmarks.startup import free_port, wait_ready

LIMIT_S = 300.0
STREAM_PROMPT_TOKENS = 32
# Ids below are special or bytes in many vocabularies; the highest that every model has.
TOKEN_IDS = range(1000, 8000)


class Load(NamedTuple):
    """What one turn sends; stream_tokens bounds streams that nobody closes."""

    num_streams: int
    num_prompts: int
    prompt_tokens: int
    every_s: float
    stream_tokens: int


class Figures(NamedTuple):
    """One turn's figures: milliseconds, and the streams' tokens per second."""

    itl_p50_ms: float
    itl_p99_ms: float
    itl_beside_p50_ms: float
    itl_beside_p99_ms: float
    itl_max_ms: float
    ttft_p50_ms: float
    ttft_max_ms: float
    tokens_per_s: float


class Turn(NamedTuple):
    """Figures of one server in one round, with the load average before it."""

    name: str
    round: int
    load_average: float
    figures: Figures


class Span(NamedTuple):
    """A time from one moment to another."""

    begin_s: float
    end_s: float


def gaps_beside(times_s: Sequence[float], spans: Sequence[Span]) -> list[float]:
    """Return the seconds between neighbouring times where they overlap one of the spans."""
    pairs = itertools.pairwise(times_s)
    return [b - a for a, b in pairs if any(b >= span.begin_s and a <= span.end_s for span in spans)]


def summarise(streams: Sequence[Sequence[float]], prompts: Sequence[Span]) -> Figures:
    """Return the figures of one turn; neither argument may be empty.

    Args:
        streams: each stream's times of tokens, in s.
        prompts: each long prompt's arrival and first token.
    """
    whole = Span(min(span.begin_s for span in prompts), max(span.end_s for span in prompts))
    gaps_ms = 1000 * np.array([gap for times in streams for gap in gaps_beside(times, [whole])])
    beside_ms = 1000 * np.array([gap for times in streams for gap in gaps_beside(times, prompts)])
    p50, p99 = np.percentile(gaps_ms, [50, 99]).tolist()
    beside_p50, beside_p99, longest = np.percentile(beside_ms, [50, 99, 100]).tolist()
    ttfts_ms = [1000 * (span.end_s - span.begin_s) for span in prompts]
    ttft, rate = statistics.median(ttfts_ms), len(gaps_ms) / (whole.end_s - whole.begin_s)
    return Figures(p50, p99, beside_p50, beside_p99, longest, ttft, max(ttfts_ms), rate)


def medians(turns: Sequence[Turn]) -> dict[str, Figures]:
    """Return each server's medians over the rounds, in the order of its first turn."""
    by_name: dict[str, list[Figures]] = {}
    for turn in turns:
        by_name.setdefault(turn.name, []).append(turn.figures)
    return {name: Figures(*map(statistics.median, zip(*all_, strict=True))) for name, all_ in by_name.items()}


def table(turns: Sequence[Turn]) -> str:
    """Return the medians as lines of Markdown; the last two columns are ratios to the first server's."""
    rows = medians(turns)
    first = next(iter(rows.values()))
    columns = ["server", "ITL p50", "ITL p99", "beside p50", "beside p99", "ITL max", "TTFT p50", "TTFT max"]
    columns += ["tokens/s", "beside p99 x", "TTFT x"]
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    for name, row in rows.items():
        cells = [f"{value:.0f}" for value in row]
        ratios = (row.itl_beside_p99_ms / first.itl_beside_p99_ms, row.ttft_p50_ms / first.ttft_p50_ms)
        lines.append("| " + " | ".join([name, *cells, *(f"{ratio:.2f}" for ratio in ratios)]) + " |")
    return "\n".join(lines)


class Client:
    """Streams completions of random prompts and notes when their chunks arrive."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self._http = http
        self._model = model
        self._random = random.Random(time.time_ns())

    async def complete(self, prompt_tokens: int, max_tokens: int, times_s: list[float]) -> None:
        """Append the time of each chunk until the answer ends; raises RuntimeError when it is an error."""
        body = {
            "model": self._model,
            "prompt": self._random.choices(TOKEN_IDS, k=prompt_tokens),
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            # Each token makes a chunk then, also one that is no whole text yet.
            "return_token_ids": True,
            "stream": True,
        }
        async with self._http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.status_code}: {(await answer.aread()).decode()}")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    times_s.append(time.monotonic())
                    if '"error"' in line:
                        raise RuntimeError(line)

    async def prefill(self, delay_s: float, prompt_tokens: int) -> Span:
        """Send a prompt after a while; return when it was sent and when its only token came."""
        await asyncio.sleep(delay_s)
        times_s: list[float] = []
        sent_s = time.monotonic()
        await self.complete(prompt_tokens, 1, times_s)
        return Span(sent_s, times_s[0])


async def wait_flowing(streams: Sequence[asyncio.Task[None]], times_s: Sequence[Sequence[float]]) -> None:
    """Return when every stream has had 20 chunks; raises what ends a stream before."""
    until_s = time.monotonic() + LIMIT_S
    while min(map(len, times_s)) < 20:
        for stream in streams:
            if stream.done():
                stream.result()
                raise RuntimeError("a stream ended before the first long prompt")
        if time.monotonic() > until_s:
            raise TimeoutError(f"streams do not flow after {LIMIT_S} s")
        await asyncio.sleep(0.05)


async def measure(url: str, model: str, load: Load) -> Figures:
    """Play the load against one server."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S, limits=limits, trust_env=False) as http:
        client = Client(http, model)
        await client.prefill(0, load.prompt_tokens)
        times_s: list[list[float]] = [[] for _ in range(load.num_streams)]
        work = (client.complete(STREAM_PROMPT_TOKENS, load.stream_tokens, times) for times in times_s)
        streams = [asyncio.create_task(stream) for stream in work]
        try:
            await wait_flowing(streams, times_s)
            delays = [i * load.every_s for i in range(load.num_prompts)]
            spans = await asyncio.gather(*(client.prefill(s, load.prompt_tokens) for s in delays))
            if any(stream.done() for stream in streams):
                raise RuntimeError("a stream ended before the last long prompt: raise --stream-tokens")
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
    return summarise(times_s, spans)


@contextmanager
def fresh_server(model: Path, target_ms: int, flags: Sequence[str]) -> Iterator[str]:
    """Serve the model on loopback, yield the address when it is ready, and end the server."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "splitserve.engine_core.launcher.cli",
        "serve",
        str(model),
        "--port",
        str(port),
    ]
    command += ["--served-model-name", "model", "--target-itl-ms", str(target_ms), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, timeout=LIMIT_S, trust_env=False) as client:
            wait_ready(client, time.monotonic())
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)


def run_round(number: int, options: argparse.Namespace) -> Iterator[Turn]:
    """Measure each target once, and the peer if there is one."""
    load = Load(
        options.streams, options.prompts, options.prompt_tokens, options.every_s, options.stream_tokens
    )
    for target_ms in options.targets:
        load_average = os.getloadavg()[0]
        with fresh_server(options.model, target_ms, options.serve_flags.split()) as url:
            figures = asyncio.run(measure(url, "model", load))
        yield Turn(f"target {target_ms}" if target_ms else "off", number, load_average, figures)
    if options.peer_url:
        load_average = os.getloadavg()[0]
        figures = asyncio.run(measure(options.peer_url, options.peer_model, load))
        yield Turn("peer", number, load_average, figures)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="checkpoint directory")
    parser.add_argument(
        "--targets", type=lambda text: [int(ms) for ms in text.split(",")], default=[0, 200, 50]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=3, help="long prompts of each turn")
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--every-s", type=float, default=8.0, help="seconds between arrivals of long prompts")
    parser.add_argument("--stream-tokens", type=int, default=4000, help="bound of each stream")
    parser.add_argument("--serve-flags", default="", help="more flags of our server, in one word")
    parser.add_argument("--peer-url", default="", help="server that runs already, without /v1")
    parser.add_argument("--peer-model", default="model", help="the peer's name of the model")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


def main() -> int:
    """Run all rounds, print each turn and the table."""
    options = parse_options()
    turns: list[Turn] = []
    for number in range(options.rounds):
        for turn in run_round(number, options):
            turns.append(turn)
            values = "  ".join(f"{value:8.1f}" for value in turn.figures)
            print(f"round {number}  load {turn.load_average:4.1f}  {turn.name:<12}{values}", flush=True)
    print(table(turns))
    if options.json:
        rows = [{**turn._asdict(), "figures": turn.figures._asdict()} for turn in turns]
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

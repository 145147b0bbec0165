"""How fast a worker serves models of known shapes, with weights drawn at random on the device.

    python -m benchmarks.gpu_engine [--shape qwen3-0.6b,llama-3.1-8b,qwen2.5-14b] [--device auto]
        [--batches 1,8,64,256] [--context 1024] [--peers] [--seconds 240] [--json FILE]

Per shape: decode tokens/s by batch size beside the floor (weights and KV cache read once, at the bandwidth of
copies measured here), a step's time by phase, prefill tokens/s, 64 requests from prompt to end, and with
--peers the same by transformers. What does not fit --seconds is left out and named.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.gpu_engine_bench import Bench
from benchmarks.gpu_engine_shapes import SHAPES, Shape, write_config
from worker.device.select import open_device

COPY_BYTES = 1 << 30
NUM_REQUESTS = 64
REQUEST_TOKENS = 128


class Row(NamedTuple):
    """One line of the table; `share` is of the floor where there is one."""

    shape: str
    what: str
    batch: int
    ms: float
    tokens_per_s: float
    share: float = 0.0


def bandwidth(device: torch.device, num_bytes: int = COPY_BYTES) -> float:
    """Bytes per second of a large copy, counting those read and those written."""
    source, target = (torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    seconds = []
    for _ in range(6):
        _wait(device)
        started = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return 2 * num_bytes / statistics.median(seconds[1:])


def rows_of(shape: Shape, bench: Bench, args: argparse.Namespace, speed: float) -> Iterator[Row]:
    """Measure one shape, the shortest first."""
    for batch in args.batches:
        seconds = bench.decode(batch, args.context)
        floor_s = (bench.weight_bytes + batch * args.context * bench.token_bytes) / speed
        yield Row(shape.name, "decode", batch, seconds * 1e3, batch / seconds, floor_s / seconds)
        for phase, phase_s in bench.phases(batch, args.context).items():
            yield Row(shape.name, f"  {phase}", batch, phase_s * 1e3, 0.0)
    seconds = bench.prefill(args.context)
    yield Row(shape.name, "prefill", 1, seconds * 1e3, args.context / seconds)
    requests, tokens = args.requests, args.request_tokens
    seconds = bench.serve(requests, tokens)
    yield Row(shape.name, f"{requests} requests", requests, seconds * 1e3, requests * tokens / seconds)


def peer_rows(shape: Shape, folder: Path, device: torch.device, args: argparse.Namespace) -> Iterator[Row]:
    """The same by transformers, where it is installed."""
    from benchmarks.gpu_engine_peers import Transformers

    peer = Transformers(folder, device)
    for batch in args.batches:
        seconds = peer.decode(batch, min(args.context, REQUEST_TOKENS))
        yield Row(shape.name, "transformers generate", batch, seconds * 1e3, batch / seconds)
    requests, tokens = args.requests, args.request_tokens
    seconds = peer.serve(requests, tokens)
    yield Row(shape.name, "transformers continuous", requests, seconds * 1e3, requests * tokens / seconds)


def measure(args: argparse.Namespace) -> list[Row]:
    """Measure every shape until the time is over."""
    device = open_device(args.device)
    speed = bandwidth(device.torch_device, args.copy_bytes)
    print(f"{device.name}: copies at {speed / 1e9:.0f} GB/s", flush=True)
    deadline = time.monotonic() + args.seconds
    rows: list[Row] = []
    for name in args.shape:
        if time.monotonic() > deadline:
            print(f"{name}: no time left")
            continue
        with tempfile.TemporaryDirectory() as directory:
            folder = write_config(SHAPES[name], Path(directory), args.context + args.request_tokens)
            bench = Bench(folder, device, max(*args.batches, args.requests), args)
            rows += show(rows_of(SHAPES[name], bench, args, speed), deadline)
            bench.close()
            if args.peers:
                rows += show(peer_rows(SHAPES[name], folder, device.torch_device, args), deadline)
        # What is measured stays, should the next shape not come to its end.
        if args.json:
            args.json.write_text(json.dumps([row._asdict() for row in rows], indent=1))
    return rows


def show(rows: Iterator[Row], deadline: float) -> list[Row]:
    """Print rows as they come; what comes too late is left out."""
    taken = []
    for row in rows:
        share = f"{row.share:6.2f}" if row.share else ""
        print(
            f"{row.shape:14} {row.what:24} {row.batch:4} {row.ms:10.3f} ms {row.tokens_per_s:12.1f} {share}",
            flush=True,
        )
        taken.append(row)
        if time.monotonic() > deadline:
            print(f"{row.shape}: no time left")
            break
    return taken


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", type=lambda text: text.split(","), default=list(SHAPES)[1:])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--batches", type=_numbers, default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    parser.add_argument("--request-tokens", type=int, default=REQUEST_TOKENS)
    parser.add_argument("--copy-bytes", type=int, default=COPY_BYTES)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if unknown := set(args.shape) - set(SHAPES):
        parser.error(f"--shape must be of {', '.join(SHAPES)}, got {', '.join(unknown)}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    measure(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())

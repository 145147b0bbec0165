"""How fast a worker serves models of known shapes, with weights drawn at random on the device.

    python -m benchmarks.gpu_engine [--shape qwen3-0.6b,llama-3.1-8b,qwen2.5-14b] [--device auto]
        [--batches 1,8,64,256] [--context 1024] [--peers] [--seconds 240] [--json FILE]

Per shape: decode tokens/s by batch size beside the floor (weights and KV cache read once, at the bandwidth of
copies measured here), what a step's graphs take alone, an eager step's time by phase, prefill tokens/s, what
share of the time of moves to host memory and back a prefill hides, 64 requests from prompt to end, and with
--peers the same by transformers, after all of ours. What does not fit --seconds is left out and named; what
fails is printed, the others run all the same, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu_copies import COPY_BYTES, copy_bytes_per_s
from benchmarks.gpu_engine_bench import BLOCK_SIZE, STEPS, WARM_STEPS, Bench, free_memory, longest_row
from benchmarks.gpu_engine_shapes import SHAPES, Shape, write_config
from splitserve.worker.device.base import Device
from splitserve.worker.device.select import open_device

NUM_REQUESTS = 64
REQUEST_TOKENS = 128


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        share: of a decode step that the floor takes, or its graphs alone; of moves that a prefill hides.
    """

    shape: str
    what: str
    batch: int
    ms: float
    tokens_per_s: float
    share: float = 0.0


class Table:
    """The rows so far, printed as they come, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self.rows: list[Row] = []
        self._deadline = time.monotonic() + seconds

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._deadline

    def take(self, rows: Iterator[Row]) -> None:
        """Print and keep rows; what comes too late is left out."""
        for row in rows:
            share = f"{row.share:6.2f}" if row.share else ""
            print(
                f"{row.shape:14} {row.what:24} {row.batch:4} {row.ms:10.3f} ms"
                f" {row.tokens_per_s:12.1f} {share}",
                flush=True,
            )
            self.rows.append(row)
            if self.is_late:
                print(f"{row.shape}: no time left")
                break


class Setting(NamedTuple):
    """Where a shape is measured: a device, its bytes per second, and what the command line says."""

    device: Device
    speed: float
    args: argparse.Namespace


def move_rows(shape: Shape, bench: Bench, context: int) -> Iterator[Row]:
    """Blocks that move out and in, by themselves and beside a prefill, which hides a share of their time."""
    count = bench.num_moved
    for name, moves in (("out", bench.moves_out()), ("in", bench.moves_in())):
        beside = bench.prefill_beside(context, moves)
        _, alone_s, both_s = beside
        yield Row(shape.name, f"  blocks {name}", count, alone_s * 1e3, count * BLOCK_SIZE / alone_s)
        share = beside.hidden_share
        yield Row(shape.name, f"  prefill, blocks {name}", count, both_s * 1e3, context / both_s, share)


def own_rows(shape: Shape, folder: Path, setting: Setting) -> Iterator[Row]:
    """Measure one shape, the shortest first."""
    device, speed, args = setting
    bench = Bench(folder, device, max(*args.batches, args.requests), args)
    try:
        for batch in args.batches:
            seconds = bench.decode(batch, args.context)
            floor_s = (bench.weight_bytes + batch * args.context * bench.token_bytes) / speed
            yield Row(shape.name, "decode", batch, seconds * 1e3, batch / seconds, floor_s / seconds)
            alone_s = bench.replay(batch, args.context)
            if alone_s is not None:
                share = alone_s / seconds
                yield Row(shape.name, "  graphs alone", batch, alone_s * 1e3, batch / alone_s, share)
            for phase, phase_s in bench.phases(batch, args.context).items():
                yield Row(shape.name, f"  {phase}", batch, phase_s * 1e3, 0.0)
        seconds = bench.prefill(args.context)
        yield Row(shape.name, "prefill", 1, seconds * 1e3, args.context / seconds)
        yield from move_rows(shape, bench, args.context)
        requests, tokens = args.requests, args.request_tokens
        seconds = bench.serve(requests, tokens)
        yield Row(shape.name, f"{requests} requests", requests, seconds * 1e3, requests * tokens / seconds)
    finally:
        bench.close()


def peer_rows(shape: Shape, folder: Path, setting: Setting) -> Iterator[Row]:
    """The same by transformers, where it is installed."""
    from benchmarks.gpu_engine_peers import Transformers

    args = setting.args
    peer = Transformers(folder, setting.device.torch_device)
    for batch in args.batches:
        seconds = peer.decode(batch, min(args.context, REQUEST_TOKENS))
        yield Row(shape.name, "transformers generate", batch, seconds * 1e3, batch / seconds)
    requests, tokens = args.requests, args.request_tokens
    seconds = peer.serve(requests, tokens)
    yield Row(shape.name, "transformers continuous", requests, seconds * 1e3, requests * tokens / seconds)


def measure(args: argparse.Namespace) -> bool:
    """Measure every shape until the time is over; returns whether nothing failed."""
    device = open_device(args.device)
    speed = copy_bytes_per_s(device.torch_device, args.copy_bytes)
    print(f"{device.name}: copies at {speed / 1e9:.0f} GB/s", flush=True)
    table, is_good = Table(args.seconds), True
    for rows_of in [own_rows, peer_rows] if args.peers else [own_rows]:
        for name in args.shape:
            if table.is_late:
                print(f"{name}: no time left")
                continue
            try:
                measure_shape(rows_of, SHAPES[name], Setting(device, speed, args), table)
            except Exception:
                traceback.print_exc()
                is_good = False
            # Here, as the error kept alive what the shape had taken.
            free_memory(device.torch_device)
            # What is measured stays, should the next shape not come to its end.
            if args.json:
                args.json.write_text(json.dumps([row._asdict() for row in table.rows], indent=1))
    return is_good


def measure_shape(
    rows_of: Callable[[Shape, Path, Setting], Iterator[Row]], shape: Shape, setting: Setting, table: Table
) -> None:
    """Add the rows of one shape to the table."""
    args = setting.args
    with tempfile.TemporaryDirectory() as directory:
        folder = write_config(shape, Path(directory), longest_row(args))
        table.take(rows_of(shape, folder, setting))


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
    if args.context <= STEPS + WARM_STEPS:
        # So many of them are decoded.
        parser.error(f"--context must be above {STEPS + WARM_STEPS}, got {args.context}")
    return args


def main(argv: list[str] | None = None) -> int:
    return 0 if measure(parse(argv)) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What a step with drafts takes on a GPU, beside one without: the price of a draft, before any counts.

    python -m benchmarks.gpu_speculation [--shape llama-3.1-8b] [--rows 1,8] [--drafts 1,4,8] [--context 1024]

Weights are drawn at random on the device, both with --batch-invariant. Each row's drafts are made up and
wrong, so every step has the same sizes: its tokens, computed in the graph of a decode step, and all positions
sampled. "waited for" is a step without drafts whose tokens the host waits for, as drafts need; "in flight" is
one that begins before the one before it has ended, as without --speculate. Ratios are to the latter.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.gpu_engine_bench import BLOCK_SIZE
from benchmarks.gpu_engine_shapes import SHAPES, write_config
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.step_pipeline import StepPipeline
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.select import open_device
from splitserve.worker.graphs.cuda_drafted_graphs import CudaDraftedGraphs
from splitserve.worker.graphs.cuda_graphs import CudaGraphs
from splitserve.worker.ops.columns import Int32
from splitserve.worker.sampling.step_result import RowEnds
from splitserve.worker.speculation.draft_sheet import DraftSheet
from splitserve.worker.speculation.drafting import Drafting
from splitserve.worker.speculation.speculator import Speculator
from splitserve.worker.weights.random_weights import draw_weights
from splitserve.worker.worker import Worker

STEPS, WARM_STEPS, ROUNDS = 20, 4, 3
# Of a step with drafts.
MAX_TOKENS = 64


class MadeUp(Speculator):
    """Drafts the same tokens behind every row, as many as it may."""

    def __init__(self, sheet: DraftSheet) -> None:
        super().__init__(sheet, [], 8)

    def draft(self, step: SchedulerOutput) -> Int32 | None:
        """See Speculator."""
        batch = self._sheet.batch
        count = step.max_drafts if len(step.rows) == len(step.num_tokens) and not step.new_rows else 0
        if not count:
            return None
        for row in range(len(step.rows) // 4):
            end = batch.num_tokens.item(row)
            batch.tokens[row, end : end + count] = 7
        return np.full(len(batch.num_tokens), count, np.int32)

    def learn(self, rows: Int32, num_drafts: Int32, num_counted: Int32) -> list[RowEnds]:
        """See Speculator."""
        return []


class Bench:
    """Rows of one length, whose KV cache is whatever lies in it."""

    def __init__(self, folder: Path, device: Device, max_rows: int, args: argparse.Namespace) -> None:
        self._context = args.context
        self._blocks_per_row = longest_row(args.context) // BLOCK_SIZE + 1
        config = WorkerConfig(
            model=str(folder),
            dtype=args.dtype,
            batch_invariant=True,
            max_num_seqs=min(MAX_TOKENS, max_rows * (1 + max(args.drafts))),
            max_num_batched_tokens=max_rows * 16,
            kv_cache_memory_bytes=1,
        )
        self._worker = Worker(config, device, draw_weights)
        self._worker.load()
        self._worker.init_kv_cache(max_rows * self._blocks_per_row)
        runner = self._worker.runner
        assert runner is not None
        self._runner = runner
        assert isinstance(runner.graphs, CudaGraphs)
        speculator = MadeUp(DraftSheet(runner.batch, MAX_TOKENS))
        grammars = runner._sampler.grammars
        self._drafting = Drafting(speculator, grammars, CudaDraftedGraphs(runner.graphs))

    def enter(self, rows: int) -> None:
        """Take in rows whose context is computed but for the last token."""
        new_rows = [self._new_row(row) for row in range(rows)]
        self._worker.execute(SchedulerOutput(1, pack_int32(range(rows)), pack_int32([1] * rows), new_rows))

    def leave(self, rows: int) -> None:
        """Let all rows go."""
        self._worker.execute(SchedulerOutput(1, b"", b"", freed_rows=pack_int32(range(rows))))

    def seconds(self, rows: int, num_drafts: int, *, waits: bool) -> float:
        """Seconds of a step of so many rows with as many drafts each."""
        self._runner.drafting = self._drafting if num_drafts else None
        step = SchedulerOutput(1, pack_int32(range(rows)), pack_int32([1] * rows), max_drafts=num_drafts)
        self._run(step, WARM_STEPS, waits)
        started = time.perf_counter()
        self._run(step, STEPS, waits)
        self._runner.drafting = None
        return (time.perf_counter() - started) / STEPS

    def _run(self, step: SchedulerOutput, count: int, waits: bool) -> None:
        steps = StepPipeline(self._worker, _check)
        for _ in range(count):
            steps.run(step, 0.0)
            if waits:
                steps.settle()
        steps.finish()

    def _new_row(self, row: int) -> NewRow:
        first = row * self._blocks_per_row
        blocks = pack_int32(range(first, first + self._blocks_per_row))
        ids = pack_int32([(row + i) % 300 for i in range(self._context)])
        sampling = SequenceSampling(temperature=0.8, top_p=0.95, seed=row, ignore_eos=True)
        return NewRow(row, ids, self._context, self._context - 1, blocks, sampling)


def longest_row(context: int) -> int:
    """Tokens of a row at the end, even if all drafts counted."""
    return context + 9 * 5 * ROUNDS * (STEPS + WARM_STEPS)


def _check(output: ModelRunnerOutput) -> None:
    assert not output.errors, output.errors


def measure(args: argparse.Namespace, device: Device) -> None:
    """Print a line for each number of rows and drafts, medians of some rounds in turns."""
    most = max(args.rows)
    with tempfile.TemporaryDirectory() as directory:
        folder = write_config(SHAPES[args.shape], Path(directory), longest_row(args.context) + BLOCK_SIZE)
        bench = Bench(folder, device, most, args)
        for rows in args.rows:
            kinds = [(0, False), (0, True), *((drafts, True) for drafts in args.drafts)]
            kinds = [kind for kind in kinds if rows * (1 + kind[0]) <= MAX_TOKENS]
            bench.enter(rows)
            taken: dict[tuple[int, bool], list[float]] = {kind: [] for kind in kinds}
            for _ in range(ROUNDS):
                for kind in kinds:
                    taken[kind].append(bench.seconds(rows, kind[0], waits=kind[1]))
            bench.leave(rows)
            floor = float(np.median(taken[0, False]))
            for (drafts, waits), seconds in taken.items():
                median = float(np.median(seconds))
                how = f"{drafts} drafts" if drafts else "waited for" if waits else "in flight"
                print(
                    f"{args.shape} {rows:3} rows {how:12} {median * 1e3:8.3f} ms {median / floor:6.2f}",
                    flush=True,
                )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=_numbers, default=[1, 8])
    parser.add_argument("--drafts", type=_numbers, default=[1, 4, 8])
    parser.add_argument("--context", type=int, default=1024)
    return parser.parse_args(argv)


if __name__ == "__main__":
    measure(parse(None), open_device("cuda", batch_invariant=True))

"""What do adapters cost a step? Rows with adapters beside the same rows without, on one worker, in turns.

    python -m benchmarks.lora --model DIR [--adapters 16] [--rank 16] [--rows 32] [--targets q_proj,v_proj]

Adapters have random numbers in every linear layer that may have any, or in those of --targets; row i uses
adapter i modulo their number. Three kinds of steps: "base" is a worker that has no adapters at all, "beside"
one that has them while no row uses one, "adapters" with one per row. The ratio is that of the base's CPU time
to theirs, so 0.85 means 85 % of its throughput; CPU time is that of the whole process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.adapters import AdapterSpec, write_adapters
from benchmarks.row_blocks import RowBlocks
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NO_ADAPTER, LoadAdapter, NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig

if TYPE_CHECKING:
    from splitserve.worker.worker import Worker

BLOCK_SIZE = 16
WARM_UP_STEPS = 5
KINDS = ("base", "beside", "adapters")
_GREEDY = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)


class Times(NamedTuple):
    """Seconds of one phase, of the clock and of the processor."""

    wall_s: float
    cpu_s: float


class Bench:
    """Workers with and without adapters.

    Args:
        flags: of the command line.
        folder: for the adapters.
    """

    def __init__(self, flags: argparse.Namespace, folder: Path) -> None:
        self._flags = flags
        self._base, self._adapted = self._worker(0), self._worker(flags.adapters)
        spec = AdapterSpec(flags.adapters, flags.rank, flags.targets)
        for slot, path in enumerate(write_adapters(Path(flags.model), spec, folder)):
            answer = self._adapted.load_adapter(LoadAdapter(slot, slot, str(path)))
            if answer.error:
                raise SystemExit(answer.error)

    def _worker(self, num_slots: int) -> Worker:
        # Here and not above, since it loads OpenMP, which reads its environment then.
        from splitserve.worker.worker import Worker

        flags = self._flags
        config = WorkerConfig(
            model=flags.model,
            num_threads=flags.threads,
            max_num_seqs=flags.rows,
            max_num_batched_tokens=flags.prompt * flags.rows,
            lora_dir="/" if num_slots else "",
            max_loras=max(1, num_slots),
            max_lora_rank=flags.rank,
        )
        worker = Worker(config)
        per_row = -(-(flags.prompt + flags.steps + WARM_UP_STEPS + 1) // BLOCK_SIZE)
        self._blocks = RowBlocks(worker.load().model, per_row)
        worker.init_kv_cache(self._blocks.of_rows(flags.rows))
        return worker

    def run(self, kind: str) -> tuple[Times, Times]:
        """Prefill all rows in one step, then decode; returns the times of a prompt and of a decode step."""
        flags = self._flags
        worker = self._base if kind == "base" else self._adapted
        rows = pack_int32(range(flags.rows))
        begun = self._new_rows(kind)
        prefill = self._timed(
            worker, [SchedulerOutput(1, rows, pack_int32([flags.prompt] * flags.rows), begun)], flags.rows
        )
        step = SchedulerOutput(1, rows, pack_int32([1] * flags.rows))
        for _ in range(WARM_UP_STEPS):
            worker.execute(step)
        decode = self._timed(worker, [step] * flags.steps, flags.steps)
        worker.execute(SchedulerOutput(1, b"", b"", freed_rows=rows))
        return prefill, decode

    def _timed(self, worker: Worker, steps: Sequence[SchedulerOutput], parts: int) -> Times:
        started, cpu_started = time.perf_counter(), time.process_time()
        for step in steps:
            output = worker.execute(step)
            assert not output.errors, output.errors[0].message
        took, cpu_took = time.perf_counter() - started, time.process_time() - cpu_started
        return Times(took / parts, cpu_took / parts)

    def _new_rows(self, kind: str) -> list[NewRow]:
        flags, blocks = self._flags, self._blocks
        return [
            NewRow(
                row=row,
                token_ids=pack_int32([5 + (7 * row + i) % 40 for i in range(flags.prompt)]),
                num_prompt_tokens=flags.prompt,
                num_computed_tokens=0,
                block_ids=blocks.first(row),
                window_block_ids=blocks.windows(row),
                sampling=_GREEDY,
                adapter=row % flags.adapters if kind == "adapters" else NO_ADAPTER,
            )
            for row in range(flags.rows)
        ]


def parse_options(args: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or `args` in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="checkpoint directory")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores this process may use")
    parser.add_argument("--adapters", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--targets", default="all", help="last names of layers, or all")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=20, help="decode steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(args)


def main() -> None:
    flags = parse_options()
    # As worker.cli has it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    found: dict[str, list[tuple[Times, Times]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(flags, Path(folder))
        for kind in KINDS:
            bench.run(kind)
        for _ in range(flags.rounds):
            for kind in KINDS:
                found[kind].append(bench.run(kind))
    print(f"{'':9} {'decode ms':>10} {'cpu ms':>8} {'ratio':>6} {'prompt ms':>10} {'cpu ms':>8} {'ratio':>6}")
    for kind in KINDS:
        cells = [_cells(found, kind, phase) for phase in (1, 0)]
        print(f"{kind:9} {cells[0]} {cells[1]}")


def _cells(found: dict[str, list[tuple[Times, Times]]], kind: str, phase: int) -> str:
    """Medians of a phase, and the median of the rounds' ratios of CPU time."""
    own = [times[phase] for times in found[kind]]
    base = [times[phase] for times in found["base"]]
    ratio = statistics.median(one.cpu_s / other.cpu_s for one, other in zip(base, own, strict=True))
    wall = statistics.median(each.wall_s for each in own)
    cpu = statistics.median(each.cpu_s for each in own)
    return f"{wall * 1e3:10.2f} {cpu * 1e3:8.2f} {ratio:6.3f}"


if __name__ == "__main__":
    main()

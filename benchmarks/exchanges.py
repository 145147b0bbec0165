"""What a sum over the ranks of a layer costs: over gloo, and through memory that ranks of a machine share.

python -m benchmarks.exchanges [--ranks N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.ops.cpu import ops
from splitserve.worker.parallel.distributed import DistributedGroup
from splitserve.worker.parallel.group import RankGroup
from splitserve.worker.parallel.shared_memory import SharedMemoryGroup

SHAPES = [(rows, width) for rows in (1, 64, 1024) for width in (576, 1024)]
ROUNDS = 5
REPEATS = 100


def main(argv: Sequence[str] | None = None) -> None:
    """Print one line per shape; each rank has one thread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=2, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=run_rank, args=(rank, options.ranks, folder, theirs), daemon=True)
            for rank in range(options.ranks)
        ]
        for process in ranks:
            process.start()
        rows: list[dict[str, float]] = ours.recv()
        for process in ranks:
            process.join()
    print(f"{options.ranks} ranks   gloo us   shared memory us")
    for row in rows:
        print(f"{row['rows']:5} x {row['width']:4}  {row['gloo_us']:8.1f}  {row['shared_us']:8.1f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def run_rank(rank: int, num_ranks: int, folder: str, answer: Connection) -> None:
    """Time every shape with both groups; rank 0 answers."""
    torch.set_num_threads(1)
    ops.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=num_ranks)
    gloo = DistributedGroup(None, CpuDevice())
    shared = SharedMemoryGroup(FileStore(f"{folder}/shared", num_ranks), rank, num_ranks)
    rows = []
    for count, width in SHAPES:
        both = {"gloo_us": best_us(gloo, count, width), "shared_us": best_us(shared, count, width)}
        rows.append({"rows": count, "width": width, **both})
    if rank == 0:
        answer.send(rows)
    dist.destroy_process_group()


def best_us(group: RankGroup, count: int, width: int) -> float:
    """Return the microseconds of one sum of float32 [count, width] into bfloat16, in the best round."""
    partial = torch.randn(count, width)
    out = torch.empty(count, width, dtype=torch.bfloat16)
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(REPEATS):
            group.sum_into(out, partial)
        times.append((time.perf_counter() - begun) / REPEATS)
    return 1e6 * min(times)


if __name__ == "__main__":
    main()

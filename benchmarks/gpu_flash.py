"""Times attention by each installed FlashAttention beside our kernels, by the call that serving makes.

`python -m benchmarks.gpu_flash [--seconds S] [--json F]`, on a machine with a GPU. Each edition has a process
of its own: one that crashes, hangs or is not there is named with the reason, and ends nothing. Times are of
calls in a CUDA graph, after the first has compiled what it needs; how long that took is a column of its own.
Their pages are of 16 tokens, as ours, and of 128, which FlashAttention 3 and 4 load whole; FlashAttention 2
has pages of 256 only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu_attention import Step, Work
from benchmarks.gpu_kernels import median_us
from splitserve.worker.attention.flash_editions import EDITIONS, Attend, Edition, Paged, open_edition
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.attention.needs import AttentionNeeds
from splitserve.worker.ops.cuda import cuda_ops

# Decode at 4k and 16k, also of heads of 64; prefill, a chunk behind a long prefix; and a chunk among decode
# rows.
WORK = [
    Work(64, 1, 4096),
    Work(64, 1, 16384),
    Work(64, 1, 4096, head_dim=64),
    Work(1, 1, 32768),
    Work(4, 4096, 4096),
    Work(4, 4096, 4096, head_dim=64),
    Work(1, 2048, 16384),
    Work(63, 1, 4096, chunk=2048),
]
# Of the root mean square of our result: bfloat16 rounds to a 256th.
TOLERANCE = 0.02
PACKAGES = ("flash-attn", "flash-attn-3", "flash-attn-4")
# Our prefill has to have this share of theirs in speed, or serving should use theirs.
TARGET = 0.9


Timer = Callable[[Callable[[], Tensor]], float]
"""Microseconds per call."""


@dataclass(slots=True)
class Compared:
    """Ours and theirs, or the reason why there is no comparison.

    Attributes:
        block_size: of their pages; 0 where none was tried.
        open_s: import and trial call, 0 where they failed; first_call_s: the first call of this shape. Both
            compile.
        us, our_us: median microseconds per call.
        speed: ours over theirs.
        error: root mean square of the difference, over that of our result.
        is_prefill: bound by arithmetic, and no row decodes.
    """

    edition: str
    block_size: int = 0
    shape: str = ""
    reason: str = ""
    is_prefill: bool = False
    open_s: float = 0.0
    first_call_s: float = 0.0
    us: float = 0.0
    gb_per_s: float = 0.0
    tflop_per_s: float = 0.0
    our_us: float = 0.0
    speed: float = 0.0
    error: float = 0.0


def paged(step: Step, page_size: int) -> Paged:
    """The step's values in scattered pages of so many tokens, as the packages lay them out."""
    tokens = (step.gathered(cache) for cache in (step.k_cache, step.v_cache))
    pages = [x.unflatten(1, (-1, page_size)).flatten(0, 1) for x in tokens]
    order = torch.randperm(len(pages[0]), device=step.q.device)
    # Page i of the sequences, one after the other, lies at order[i].
    k, v = (torch.empty_like(x).index_copy_(0, order, x) for x in pages)
    tables = order.int().view(len(step.work.counts), -1)
    meta = AttentionMetadata(step.seq_lens, step.seq_lens, tables, step.cu_seqlens, step.seq_lens)
    return Paged(k, v, meta, step.work.head_dim**-0.5, -1)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over that of what is expected; NaN stays NaN."""
    expected = expected.float()
    return float((actual.float() - expected).norm() / expected.norm())


def compare(step: Step, edition: Edition, page_size: int, time_us: Timer) -> Compared:
    """Open an edition for a step, check its result against ours, and time both."""
    work = step.work
    result = Compared(edition.name, page_size, work.name, is_prefill=work.new > 1)
    needs = AttentionNeeds(step.q.dtype, page_size, work.head_dim, work.heads, work.kv_heads)
    started = time.perf_counter()
    found = open_edition(edition, needs, step.q.device)
    if found.attend is None:
        result.reason = found.reason
        return result
    result.open_s = time.perf_counter() - started
    try:
        _measure(result, step, found.attend, time_us)
    # Of a foreign package, which may raise anything.
    except Exception as error:
        result.reason = f"{type(error).__name__}: {error}"
    return result


def _measure(result: Compared, step: Step, attend: Attend, time_us: Timer) -> None:
    cache = paged(step, result.block_size)
    started = time.perf_counter()
    # The norms wait for the GPU.
    result.error = relative_error(attend(step.q, cache), step.ours())
    result.first_call_s = time.perf_counter() - started
    if not result.error <= TOLERANCE:
        result.reason = f"differs from ours by {result.error:.3f}"
        return
    result.our_us = time_us(step.ours)
    result.us = time_us(lambda: attend(step.q, cache))
    result.gb_per_s = step.num_bytes / result.us / 1e3
    result.tflop_per_s = step.work.flops / result.us / 1e6
    result.speed = result.us / result.our_us


def compare_edition(edition: Edition) -> Iterator[Compared]:
    """Everything that is to be known of an edition on this GPU."""
    ops, device = cuda_ops(), torch.device("cuda")
    major = torch.cuda.get_device_capability()[0]
    if major not in edition.majors:
        yield Compared(edition.name, reason=f"no paged kernels for compute capability {major}.x")
        return
    opened = False
    for work in WORK:
        step = Step(ops, device, work, torch.bfloat16)
        for page_size in (16, 128) if edition.block_multiple == 1 else (edition.block_multiple,):
            result = compare(step, edition, page_size, median_us)
            yield result
            opened = opened or result.open_s > 0
            if not opened:
                return


def collect(edition: str, command: list[str], seconds: float) -> list[Compared]:
    """Run a command that prints comparisons as lines of JSON, and add why there are no more if it failed.

    Args:
        edition: whose they are.
        command: what to run.
        seconds: after which it is killed.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 1.0), check=False)
        lines = done.stdout
        last_words = (done.stderr.strip().splitlines() or [""])[-1]
        reason = f"ended with status {done.returncode}: {last_words[:200]}" if done.returncode else ""
    except subprocess.TimeoutExpired as expired:
        # Bytes, whatever `text` says.
        lines = bytes(expired.stdout or b"").decode()
        reason = f"took longer than {seconds:.0f} s"
    results = [Compared(**json.loads(line)) for line in lines.splitlines() if line.startswith("{")]
    return [*results, Compared(edition, reason=reason)] if reason else results


def prefill_speed(results: list[Compared]) -> float | None:
    """Our speed over that of the fastest edition, where it is worst; None if nothing was compared."""
    worst: dict[str, float] = {}
    for result in results:
        if result.is_prefill and not result.reason:
            worst[result.shape] = min(result.speed, worst.get(result.shape, result.speed))
    return min(worst.values(), default=None)


def row(result: Compared) -> str:
    """A line of the table."""
    head = f"{result.edition:<17} {result.block_size or '':>5} {result.shape:<44}"
    if result.reason:
        return f"{head} {result.reason}"
    rates = f"{result.us:>9.1f} {result.gb_per_s:>6.0f} {result.tflop_per_s:>7.1f}"
    ours = f"{result.our_us:>9.1f} {result.speed:>6.2f} {result.error:>7.4f}"
    return f"{head} {rates} {ours} {result.open_s:>6.1f} {result.first_call_s:>7.1f}"


def versions() -> dict[str, str]:
    """Of the packages that pip knows."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="in which all editions have to be done")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--edition", help="print this one's comparisons as lines of JSON; we ask for it")
    options = parser.parse_args()
    if options.edition:
        (edition,) = (edition for edition in EDITIONS if edition.name == options.edition)
        for result in compare_edition(edition):
            print(json.dumps(asdict(result)), flush=True)
        return
    until = time.monotonic() + options.seconds
    installed = versions()
    print(", ".join(f"{name} {number}" for name, number in installed.items()) or "no flash-attn package")
    rates = f"{'us':>9} {'GB/s':>6} {'TFLOP/s':>7} {'ours us':>9} {'speed':>6} {'error':>7}"
    print(f"{'edition':<17} {'pages':>5} {'shape':<44} {rates} {'open s':>6} {'first s':>7}")
    results = []
    for edition in EDITIONS:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_flash", "--edition", edition.name]
        compared = collect(edition.name, command, until - time.monotonic())
        print("\n".join(row(result) for result in compared), flush=True)
        results += compared
        if options.json:
            results_of = {"prefill_speed": prefill_speed(results), "results": [asdict(r) for r in results]}
            options.json.write_text(json.dumps({"versions": installed} | results_of, indent=1))
    speed = prefill_speed(results)
    if speed is not None:
        print(f"our prefill has {speed:.2f} of FlashAttention's speed at worst (target {TARGET})")


if __name__ == "__main__":
    main()

"""A worker with random weights, and the steps that benchmarks.gpu_engine times."""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar
from unittest.mock import patch

import torch

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.step_pipeline import StepPipeline
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.graphs.cuda_graph import CudaGraph
from splitserve.worker.graphs.cuda_graphs import CudaGraphs
from splitserve.worker.weights.random_weights import draw_weights
from splitserve.worker.worker import Worker

BLOCK_SIZE = 16
STEPS = 20
WARM_STEPS = 4
# Blocks of the CPU offload tier; 512 MiB in the shape of Llama-3.1-8B.
MAX_MOVED = 256
P = ParamSpec("P")
R = TypeVar("R")


class Moves(NamedTuple):
    """Columns of a step."""

    moves_from: bytes = b""
    moves_to: bytes = b""


NO_MOVES = Moves()


class Beside(NamedTuple):
    """Seconds of a prefill, of moves, and of a step that does both."""

    prefill_s: float
    moves_s: float
    both_s: float

    @property
    def hidden_share(self) -> float:
        """Of the moves' time, what the step with both does not take longer than a prefill."""
        return 1 - (self.both_s - self.prefill_s) / self.moves_s


class Bench:
    """Rows of one length; their KV cache is whatever lies in it, which costs the same to read.

    Attributes:
        num_moved: blocks that moves() names, of all rows but the first.
        weight_bytes: read by every decode step.
        token_bytes: KV cache of one token.
    """

    def __init__(self, folder: Path, device: Device, max_rows: int, args: argparse.Namespace) -> None:
        self._device = device
        self._blocks_per_row = -(-longest_row(args) // BLOCK_SIZE)
        config = WorkerConfig(
            model=str(folder),
            dtype=args.dtype,
            attention_backend=args.attention_backend,
            enforce_eager=args.enforce_eager,
            max_num_seqs=max_rows,
            max_num_batched_tokens=max(args.context, args.requests * args.request_tokens),
            # Its size is asked for, so nothing needs to be measured.
            kv_cache_memory_bytes=1,
        )
        self._worker = Worker(config, device, draw_weights)
        ready = self._worker.load()
        self._num_blocks = max_rows * self._blocks_per_row
        self.num_moved = min(MAX_MOVED, self._num_blocks - self._blocks_per_row)
        self._worker.init_kv_cache(self._num_blocks, self.num_moved)
        itemsize = getattr(torch, ready.model.dtype).itemsize
        # Rows of an embedding that is no output head as well are looked up, not read.
        looked_up = 0 if _is_tied(folder) else ready.model.vocab_size * _hidden_size(folder)
        self.weight_bytes = (ready.model.num_params - looked_up) * itemsize
        self.token_bytes = ready.block_bytes // BLOCK_SIZE

    def close(self) -> None:
        """Give the memory back."""
        del self._worker
        free_memory(self._device.torch_device)

    def decode(self, rows: int, context: int) -> float:
        """Mean seconds of steps that compute one token of each row, after about `context` tokens.

        They follow each other as in a worker's process.
        """
        self._enter(rows, context - STEPS - WARM_STEPS, is_computed=True)
        self._decode(rows, WARM_STEPS)
        seconds = self._timed(lambda: self._decode(rows, STEPS))
        self._leave(rows)
        return seconds / STEPS

    def replay(self, rows: int, context: int) -> float | None:
        """Mean seconds that a GPU alone takes for such a step, no host in its way; None without a graph."""
        runner = self._worker.runner
        graphs = runner.graphs if runner is not None else None
        if not isinstance(graphs, CudaGraphs):
            return None
        self._enter(rows, context, is_computed=True)
        self._decode(rows, 1)
        graph = graphs._graphs.get(min((size for size in graphs._sizes if size >= rows), default=0))
        self._leave(rows)
        return None if graph is None else self._timed(lambda: _replay(graph)) / STEPS

    def phases(self, rows: int, context: int) -> dict[str, float]:
        """Seconds of an eager step's phases, each waited for, so that they add up to more than a step."""
        runner = self._worker.runner
        assert runner is not None
        spent: dict[str, float] = {}
        with (
            patch.object(runner, "graphs", None),
            patch.object(runner.batch, "prepare", self._watch("inputs", runner.batch.prepare, spent)),
            patch.object(runner._model, "forward", self._watch("layers", runner._model.forward, spent)),
            patch.object(
                runner._model, "compute_logits", self._watch("head", runner._model.compute_logits, spent)
            ),
            patch.object(runner._sampler, "sample", self._watch("sampler", runner._sampler.sample, spent)),
        ):
            self.decode(rows, context)
        # The step that the rows enter with computes one token of each as well.
        return {name: total / (1 + WARM_STEPS + STEPS) for name, total in spent.items()}

    def prefill(self, tokens: int) -> float:
        """Median seconds of the step that computes a prompt of so many tokens."""
        return statistics.median(self._prefill(tokens) for _ in range(3))

    def prefill_beside(self, tokens: int, moves: Moves) -> Beside:
        """Median seconds of a prompt's step, of moves, and of a step with both, in turns."""
        step = SchedulerOutput(1, b"", b"", **moves._asdict())
        rounds = [
            (self._prefill(tokens), self._timed(lambda: self._execute(step)), self._prefill(tokens, moves))
            for _ in range(5)
        ]
        return Beside(*(statistics.median(seconds) for seconds in zip(*rounds, strict=True)))

    def moves_out(self) -> Moves:
        """num_moved blocks of the pool go to the CPU offload tier."""
        inside = pack_int32(range(self._blocks_per_row, self._blocks_per_row + self.num_moved))
        return Moves(inside, pack_int32(range(self._num_blocks, self._num_blocks + self.num_moved)))

    def moves_in(self) -> Moves:
        """They come back."""
        return Moves(*reversed(self.moves_out()))

    def serve(self, requests: int, tokens: int) -> float:
        """Seconds from the prompts of some requests, of so many tokens, to as many output tokens of each."""
        self._enter(requests, tokens)
        self._decode(requests, WARM_STEPS)
        self._leave(requests)
        return self._timed(lambda: self._serve(requests, tokens))

    def _prefill(self, tokens: int, moves: Moves = NO_MOVES) -> float:
        seconds = self._timed(lambda: self._enter(1, tokens, moves=moves))
        self._leave(1)
        return seconds

    def _serve(self, requests: int, tokens: int) -> None:
        self._enter(requests, tokens)
        self._decode(requests, tokens - 1)
        self._leave(requests)

    def _timed(self, run: Callable[[], object]) -> float:
        self._device.synchronize()
        started = time.perf_counter()
        run()
        self._device.synchronize()
        return time.perf_counter() - started

    def _watch(self, name: str, call: Callable[P, R], spent: dict[str, float]) -> Callable[P, R]:
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            self._device.synchronize()
            started = time.perf_counter()
            result = call(*args, **kwargs)
            self._device.synchronize()
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - started
            return result

        return run

    def _decode(self, rows: int, count: int) -> None:
        """Steps of which each begins, where it can, before the one before it is finished."""
        step = SchedulerOutput(1, pack_int32(range(rows)), pack_int32([1] * rows))
        steps = StepPipeline(self._worker, _check)
        for _ in range(count):
            steps.run(step, 0.0)
        steps.settle()

    def _enter(self, rows: int, tokens: int, is_computed: bool = False, moves: Moves = NO_MOVES) -> None:
        num_computed = tokens - 1 if is_computed else 0
        new_rows = [self._new_row(row, tokens, num_computed) for row in range(rows)]
        counts = pack_int32([tokens - num_computed] * rows)
        moved = moves._asdict()
        self._execute(SchedulerOutput(1, pack_int32(range(rows)), counts, new_rows, **moved))

    def _new_row(self, row: int, tokens: int, num_computed: int) -> NewRow:
        first = row * self._blocks_per_row
        blocks = pack_int32(range(first, first + self._blocks_per_row))
        ids = pack_int32([(row + i) % 300 for i in range(tokens)])
        sampling = SequenceSampling(temperature=0.8, top_p=0.95, seed=row)
        return NewRow(row, ids, tokens, num_computed, blocks, sampling)

    def _leave(self, rows: int) -> None:
        self._execute(SchedulerOutput(1, b"", b"", freed_rows=pack_int32(range(rows))))

    def _execute(self, step: SchedulerOutput) -> None:
        _check(self._worker.execute(step))


def _check(output: ModelRunnerOutput) -> None:
    assert not output.errors, output.errors[0].message


@torch.inference_mode()
def _replay(graph: CudaGraph) -> None:
    for _ in range(STEPS):
        graph._forward()
        graph._draw()


def longest_row(args: argparse.Namespace) -> int:
    """Tokens of a prompt, the longer one of the two that are measured, and what comes after it."""
    return int(max(args.context, args.request_tokens) + args.request_tokens)


def free_memory(device: torch.device) -> None:
    """Give back what nobody refers to any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _is_tied(folder: Path) -> bool:
    from splitserve.engine_core.checkpoint.config.architectures import read_model_config

    return read_model_config(folder).tie_word_embeddings


def _hidden_size(folder: Path) -> int:
    from splitserve.engine_core.checkpoint.config.architectures import read_model_config

    return read_model_config(folder).hidden_size

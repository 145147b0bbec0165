"""Decode steps in graphs end as eager ones do; in the emulation a replay runs the work again."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.graphs.cuda_graph import CudaGraph
from splitserve.worker.graphs.cuda_graphs import MAX_GRAPH_ROWS, CudaGraphs, ladder
from splitserve.worker.graphs.cuda_step import CudaStep
from splitserve.worker.worker import Worker
from tests.checkpoints import VOCAB_SIZE, CheckpointCache, CheckpointSpec
from tests.gpu.conftest import Gpu
from tests.gpu.whole_worker import NUM_BLOCKS, device_of, start_worker
from tests.worker.graphs.pairing import Pair, decoding_jobs, pair_of
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.driver import Driver

pytestmark = pytest.mark.slow

HOST_BLOCKS = 40


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every step that a graph ran."""
    seen: list[int] = []
    forward = CudaGraph.forward

    def counted(graph: CudaGraph, batch: object, inputs: object) -> None:
        seen.append(len(inputs.rows))  # type: ignore[attr-defined]
        forward(graph, batch, inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(CudaGraph, "forward", counted)
    return seen


def enter(pair: Pair, rows: int, **params: object) -> None:
    """Rows with three tokens each and room for 20."""
    new_rows = [
        NewRow(
            row,
            pack_int32([4, 5, 6 + row]),
            3,
            0,
            pack_int32(range(5 * row, 5 * row + 5)),
            SequenceSampling(seed=row, temperature=0.9, **params),  # type: ignore[arg-type]
        )
        for row in range(rows)
    ]
    counts = pack_int32([3] * rows)
    pair.execute(SchedulerOutput(1, pack_int32(range(rows)), counts, new_rows))


def decode(pair: Pair, *rows: int) -> None:
    pair.execute(SchedulerOutput(1, pack_int32(rows), pack_int32([1] * len(rows))))


def test_random_batches_draw_alike(gpu: Gpu, checkpoint: Path, sizes: list[int]) -> None:
    pair, rng = pair_of(checkpoint, device_of(gpu)), random.Random(4)
    driver = Driver(pair, pair.config, NUM_BLOCKS, rng, HOST_BLOCKS)
    driver.run(decoding_jobs(rng, VOCAB, featured=0))
    assert driver.host.num_loads > 0
    # Padded to 4 and to 6 rows, and not.
    assert {3, 4, 5, 6} <= set(sizes)


def test_layers_with_and_without_a_window_have_blocks_of_their_own(
    gpu: Gpu, checkpoints: CheckpointCache
) -> None:
    settings = {"num_hidden_layers": 3, "sliding_window": 13, "sliding_window_pattern": 3}
    path = checkpoints.get(CheckpointSpec("gemma3", settings))
    ours = decoding_jobs(random.Random(4), VOCAB_SIZE, featured=0)[:4]
    theirs = [job.again() for job in ours]
    for device, jobs in ((device_of(gpu), ours), (None, theirs)):
        pair = pair_of(path, device, max_model_len=160)
        assert pair.num_window_groups == 2
        Driver(pair, pair.config, NUM_BLOCKS, random.Random(4), num_window_groups=2).run(jobs)
    assert [job.tokens for job in ours] == [job.tokens for job in theirs]


@pytest.mark.parametrize("params", [{}, {"logprobs": 3, "presence_penalty": 0.5}])
def test_a_size_of_the_ladder_gives_the_same_bits(
    gpu: Gpu, checkpoint: Path, params: dict[str, object], sizes: list[int]
) -> None:
    pair = pair_of(checkpoint, device_of(gpu))
    sizes.clear()
    enter(pair, 4, **params)
    for rows in [(0, 1, 2, 3), (3, 1, 0, 2), (2,), (0, 3), (1, 0, 3, 2)]:
        # Logprobs are compared byte by byte.
        decode(pair, *rows)
    assert sizes == [4, 4, 1, 2, 4]


def test_padding_writes_into_no_block(gpu: Gpu, checkpoint: Path, sizes: list[int]) -> None:
    pair = pair_of(checkpoint, device_of(gpu))
    sizes.clear()
    enter(pair, 3)
    runner = pair.workers[0].runner
    assert runner is not None
    untouched = [cache.k[15:].clone() for cache in runner._kv_caches]
    first = [cache.k[0, :, :3].clone() for cache in runner._kv_caches]
    decode(pair, 0, 1, 2)
    assert sizes == [3]
    for cache, after, before in zip(runner._kv_caches, untouched, first, strict=True):
        assert torch.equal(cache.k[15:], after)
        assert torch.equal(cache.k[0, :, :3], before)


def test_graphs_are_captured_anew_when_the_buffers_move(gpu: Gpu, checkpoint: Path, sizes: list[int]) -> None:
    pair = pair_of(checkpoint, device_of(gpu))
    sizes.clear()
    enter(pair, 2)
    decode(pair, 0, 1)
    runner = pair.workers[0].runner
    assert runner is not None
    graphs = runner.graphs._graphs
    before = graphs[2]
    runner._model.workspace.take("residual", 4000, 64)
    decode(pair, 0, 1)
    decode(pair, 1, 0)
    assert list(graphs) == [6, 2]
    assert graphs[2] is not before
    assert sizes == [2, 2, 2]


def graphs_of(worker: Worker) -> CudaGraphs:
    assert worker.runner is not None
    graphs = worker.runner.graphs
    assert isinstance(graphs, CudaGraphs)
    return graphs


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes in the order in which they are captured."""
    seen: list[int] = []
    make = CudaGraphs._make
    monkeypatch.setattr(CudaGraphs, "_make", lambda self, size: (seen.append(size), make(self, size))[1])
    return seen


def test_the_largest_size_is_captured_before_any_other(
    gpu: Gpu, checkpoint: Path, captured: list[int]
) -> None:
    worker, _ = start_worker(gpu, checkpoint)
    # First of all while memory is counted, then with the first row of the warm-up.
    assert captured == [6, 6, 1]
    while worker.prepare_ahead():
        pass
    assert captured == [6, 6, 1, 4, 2]
    assert not worker.prepare_ahead()


def test_all_sizes_share_one_block_table(gpu: Gpu, checkpoint: Path) -> None:
    worker, _ = start_worker(gpu, checkpoint)
    while worker.prepare_ahead():
        pass
    tables = [graph._step.meta.block_tables for graph in graphs_of(worker)._graphs.values()]
    assert {len(table) for table in tables} == {1, 2, 4, 6}
    assert len({table.data_ptr() for table in tables}) == 1


def test_padding_attends_to_block_0_whatever_other_sizes_left_in_the_table() -> None:
    # As rows do whose first blocks have left the window.
    tables = torch.full((4, 3), -1, dtype=torch.int32)
    step = CudaStep(torch.zeros(9, dtype=torch.int32), tables, 2)
    assert step.meta.block_tables.tolist() == [[0, -1, -1]] * 2


def test_a_size_captured_ahead_gives_the_same_bits(gpu: Gpu, checkpoint: Path, captured: list[int]) -> None:
    pair = pair_of(checkpoint, device_of(gpu))
    while pair.workers[0].prepare_ahead():
        pass
    captured.clear()
    enter(pair, 4)
    for rows in [(0, 1, 2, 3), (3, 1), (2,)]:
        decode(pair, *rows)
    assert captured == []


def test_nothing_is_captured_ahead_while_a_row_is_in_the_batch(gpu: Gpu, checkpoint: Path) -> None:
    pair = pair_of(checkpoint, device_of(gpu))
    enter(pair, 1)
    assert not pair.workers[0].prepare_ahead()
    pair.execute(SchedulerOutput(1, b"", b"", freed_rows=pack_int32([0])))
    assert pair.workers[0].prepare_ahead()
    # Without graphs there is nothing to do.
    assert not pair.workers[1].prepare_ahead()


LACKING = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    # As the driver says it where a graph is made of what was captured.
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
]


def lack_memory(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError, *allowed: int, where: str = "capture"
) -> list[int]:
    """Let captures of all but some sizes fail in one of their phases; returns the sizes that were tried."""
    tried: list[int] = []
    make = CudaGraphs._make

    def fail() -> CudaGraph:
        raise error

    def short(self: CudaGraphs, size: int) -> CudaGraph:
        if size in allowed:
            return make(self, size)
        tried.append(size)
        if where == "make":
            fail()
        graph = make(self, size)
        monkeypatch.setattr(graph, where, fail)
        return graph

    monkeypatch.setattr(CudaGraphs, "_make", short)
    return tried


@pytest.mark.parametrize("error", LACKING)
def test_without_memory_for_graphs_ahead_steps_run_eagerly(
    gpu: Gpu, checkpoint: Path, sizes: list[int], error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = pair_of(checkpoint, device_of(gpu))
    with monkeypatch.context() as patch:
        tried = lack_memory(patch, error)
        assert not pair.workers[0].prepare_ahead()
        assert tried == [4]
    sizes.clear()
    enter(pair, 4)
    # Sizes 6 and 1 are there since the start.
    for rows in [(0, 1), (2,), (0, 1, 2, 3), (1, 0)]:
        decode(pair, *rows)
    assert sizes == [1]
    assert not pair.workers[0].prepare_ahead()


@pytest.mark.parametrize("where", ["make", "run", "capture"])
@pytest.mark.parametrize("error", LACKING)
def test_without_memory_for_a_graph_in_need_its_step_runs_eagerly(
    gpu: Gpu,
    checkpoint: Path,
    sizes: list[int],
    error: RuntimeError,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = pair_of(checkpoint, device_of(gpu))
    sizes.clear()
    enter(pair, 2)
    tried = lack_memory(monkeypatch, error, where=where)
    for rows in [(0, 1), (1, 0), (1,)]:
        decode(pair, *rows)
    # It is not tried again, and its rows have not failed.
    assert tried == [2]
    assert sizes == [1]


def test_a_graph_that_finds_no_memory_is_gone_at_once(
    gpu: Gpu, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = start_worker(gpu, checkpoint)
    made: list[weakref.ref[CudaGraph]] = []
    make = CudaGraphs._make

    def noted(self: CudaGraphs, size: int) -> CudaGraph:
        graph = make(self, size)
        made.append(weakref.ref(graph))
        return graph

    def lacking(run: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(CudaGraphs, "_make", noted)
    monkeypatch.setattr(worker._device, "capture", lacking)
    # pytest keeps what is logged, and so the error, the frames that it went through, and the graph.
    monkeypatch.setattr("splitserve.worker.graphs.cuda_graphs.logger.disabled", True)
    # As while a worker starts.
    gc.disable()
    try:
        assert not worker.prepare_ahead()
        assert [graph() for graph in made] == [None]
    finally:
        gc.enable()


def test_another_failure_of_a_capture_ends_the_worker(
    gpu: Gpu, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = pair_of(checkpoint, device_of(gpu))
    enter(pair, 2)
    lack_memory(monkeypatch, RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        decode(pair, 0, 1)


def test_a_row_that_is_no_number_fails_alone(gpu: Gpu, tmp_path: Path, sizes: list[int]) -> None:
    pair = pair_of(write_tiny_llama(tmp_path / "poisoned", poisoned_token=9), device_of(gpu))
    sizes.clear()
    enter(pair, 3)
    for worker in pair.workers:
        assert worker.runner is not None
        # Row 1 has drawn the poisoned token.
        worker.runner.batch.tokens[1, 3] = 9
    step = SchedulerOutput(1, pack_int32([0, 1, 2]), pack_int32([1, 1, 1]))
    errors = pair.execute(step).errors
    assert [(error.row, error.code) for error in errors] == [(1, "numerical_error")]
    assert sizes == [3]
    # From now on the steps that name it run eagerly.
    assert [error.row for error in pair.execute(step).errors] == [1]
    assert sizes == [3]


def test_a_step_that_does_not_fit_the_batch_is_refused(gpu: Gpu, checkpoint: Path) -> None:
    pair = pair_of(checkpoint, device_of(gpu))
    enter(pair, 2)
    with pytest.raises(WorkerError, match="not in the batch"):
        pair.workers[0].execute(SchedulerOutput(1, pack_int32([0, 3]), pack_int32([1, 1])))


@pytest.mark.parametrize("max_rows", [1, 3, 6, 64, 200, 512])
def test_the_ladder_reaches_its_end_and_no_further(max_rows: int) -> None:
    sizes = ladder(max_rows)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, max_rows)
    assert len(sizes) <= 39
    # Beyond 8 rows padding is at most 15.
    assert all(high - low <= 16 for low, high in itertools.pairwise(sizes))


def test_no_step_beyond_the_ladder_is_captured() -> None:
    assert ladder(MAX_GRAPH_ROWS)[-1] == MAX_GRAPH_ROWS

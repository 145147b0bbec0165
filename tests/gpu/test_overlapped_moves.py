"""Moves run beside a step: however early or late they are, it is as if they came before the step."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.graphs.cuda_graphs import CudaGraphs
from splitserve.worker.kv_cache import host_blocks
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.kv_cache.host_blocks import HostBlocks
from splitserve.worker.kv_cache.layout import BlockShape, layer_caches
from splitserve.worker.worker import Worker
from tests.gpu.conftest import Gpu
from tests.gpu.side_streams import LastMoment, side_streams
from tests.gpu.whole_worker import NUM_BLOCKS, NUM_HOST_BLOCKS, device_of, start_on
from tests.worker.graphs.pairing import decoding_jobs
from tests.worker.ops.test_move_blocks import moved_one_by_one
from tests.worker.runner.checkpoints import NUM_LAYERS, VOCAB
from tests.worker.runner.driver import Driver, Job
from tests.worker.runner.test_batch_invariance import random_jobs

pytestmark = pytest.mark.slow

HOST = NUM_BLOCKS


@pytest.fixture(scope="module")
def cpu_worker(checkpoint: Path) -> tuple[Worker, WorkerConfig]:
    return start_on(CpuDevice(), checkpoint)


@pytest.fixture
def every_layer_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_blocks, "_GROUP_BYTES", 1)


@pytest.fixture
def moved_before_graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the steps that moved blocks and ran as a graph."""
    seen: list[int] = []
    forward = CudaGraphs.forward

    def counted(graphs: CudaGraphs, step: SchedulerOutput) -> object:
        graph = forward(graphs, step)
        if graph is not None and step.moves_from:
            seen.append(len(graph.rows))
        return graph

    monkeypatch.setattr(CudaGraphs, "forward", counted)
    return seen


def last_moment(gpu: Gpu, checkpoint: Path) -> tuple[Worker, LastMoment]:
    device, stream = device_of(gpu), LastMoment()
    device.side_stream = stream
    return start_on(device, checkpoint)[0], stream


def new_row(row: int, tokens: list[int], block_ids: list[int], num_computed: int = 0) -> NewRow:
    sampling = SequenceSampling(seed=5, temperature=0.0)
    return NewRow(row, pack_int32(tokens), len(tokens), num_computed, pack_int32(block_ids), sampling)


def step_of(row: int, count: int, moves: list[tuple[int, int]], **fields: object) -> SchedulerOutput:
    columns = [pack_int32([move[i] for move in moves]) for i in (0, 1)]
    rows, counts = (pack_int32([row]), pack_int32([count])) if count else (b"", b"")
    return SchedulerOutput(1, rows, counts, moves_from=columns[0], moves_to=columns[1], **fields)  # type: ignore[arg-type]


def mixed_jobs(seed: int) -> list[Job]:
    rng = random.Random(seed)
    return [*random_jobs(rng)[:6], *decoding_jobs(rng, VOCAB, featured=0)[:6]]


@pytest.mark.parametrize("which", [0, 1], ids=["early", "late"])
@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_traffic_gets_the_tokens_of_the_cpu(
    gpu: Gpu,
    which: int,
    enforce_eager: bool,
    seed: int,
    checkpoint: Path,
    cpu_worker: tuple[Worker, WorkerConfig],
    every_layer_by_itself: None,
    moved_before_graphs: list[int],
) -> None:
    device = device_of(gpu)
    device.side_stream = list(side_streams(device).values())[which]
    ours = mixed_jobs(seed)
    theirs = [job.again() for job in ours]
    for worker, jobs in (
        (start_on(device, checkpoint, enforce_eager=enforce_eager), ours),
        (cpu_worker, theirs),
    ):
        driver = Driver(*worker, NUM_BLOCKS, random.Random(seed), NUM_HOST_BLOCKS)
        driver.run(jobs)
        assert driver.host.num_loads > 1
    assert [job.tokens for job in ours] == [job.tokens for job in theirs]
    assert {job.error for job in ours} == {None}
    assert (len(moved_before_graphs) > 0) != enforce_eager


def test_a_layer_waits_for_its_own_moves_and_those_before_alone(
    gpu: Gpu, checkpoint: Path, every_layer_by_itself: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, stream = last_moment(gpu, checkpoint)
    log: list[str] = []
    backend = worker.loaded.placement.backend
    write, move = backend.write, HostBlocks._move_layers

    def logged_write(*step: object) -> None:
        log.append("write")
        write(*step)  # type: ignore[arg-type]

    def logged_move(blocks: HostBlocks, layers: range, *columns: torch.Tensor) -> None:
        log.append(f"move {layers.start}")
        move(blocks, layers, *columns)

    monkeypatch.setattr(backend, "write", logged_write)
    monkeypatch.setattr(HostBlocks, "_move_layers", logged_move)
    worker.execute(step_of(0, 3, [(1, HOST), (HOST + 1, 2)], new_rows=[new_row(0, [4, 5, 6], [0])]))
    assert log == ["move 0", "write", "move 1", "write"]
    assert not stream.waiting


def test_few_bytes_are_moved_in_one_piece(gpu: Gpu, checkpoint: Path) -> None:
    worker, stream = last_moment(gpu, checkpoint)
    before = stream.num_done
    worker.execute(step_of(0, 3, [(1, HOST)], new_rows=[new_row(0, [4, 5, 6], [0])]))
    assert (stream.num_done - before, len(stream.waiting)) == (1, 0)


def test_steps_without_moves_use_no_other_stream(gpu: Gpu, checkpoint: Path) -> None:
    worker, stream = last_moment(gpu, checkpoint)
    before = stream.num_done
    worker.execute(step_of(0, 3, [], new_rows=[new_row(0, [4, 5, 6], [0])]))
    caches = worker.runner._kv_caches
    assert isinstance(iter(caches), type(iter([])))
    worker.execute(step_of(0, 1, []))
    assert stream.num_done == before


def test_a_step_without_rows_waits_for_its_moves(
    gpu: Gpu, checkpoint: Path, every_layer_by_itself: None
) -> None:
    worker, stream = last_moment(gpu, checkpoint)
    before = stream.num_done
    worker.execute(step_of(0, 0, [(1, HOST)]))
    assert (stream.num_done - before, len(stream.waiting)) == (NUM_LAYERS, 0)


def test_a_step_that_finds_no_memory_waits_for_its_moves(
    gpu: Gpu, checkpoint: Path, every_layer_by_itself: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, stream = last_moment(gpu, checkpoint)
    tokens = [4, 5, 6, 7, 8]
    first = worker.execute(step_of(0, 5, [], new_rows=[new_row(0, tokens, [0, 1])]))

    def fail(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(worker.loaded.placement.backend, "attend", fail)
        # Out of the pool, over which the failing step begins to write.
        moves = [(0, HOST + 3), (1, HOST + 2)]
        failed = worker.execute(step_of(1, 5, moves, new_rows=[new_row(1, [9] * 5, [0, 1])]))
    assert [error.code for error in failed.errors] == ["out_of_memory"]
    assert not stream.waiting
    back = new_row(2, tokens, [7, 8], num_computed=4)
    moves = [(HOST + 3, 7), (HOST + 2, 8)]
    again = worker.execute(step_of(2, 1, moves, new_rows=[back], freed_rows=pack_int32([0, 1])))
    assert again.token_ids == first.token_ids


def test_the_tier_is_let_go_when_the_device_is_done_with_it(gpu: Gpu, checkpoint: Path) -> None:
    worker, _ = last_moment(gpu, checkpoint)
    before, seen = worker.runner, []
    synchronize = worker._device.synchronize

    def watched() -> None:
        seen.append(worker.runner)
        synchronize()

    worker._device.synchronize = watched  # type: ignore[method-assign]
    worker.init_kv_cache(NUM_BLOCKS, NUM_HOST_BLOCKS)
    assert before in seen


# What each group of layers has to be worth, and how many groups that makes of five layers.
@pytest.mark.parametrize(("group_bytes", "num_groups"), [(1, 5), (5 * 40 * 1024 // 2, 2), (1 << 20, 1)])
def test_each_layer_is_handed_out_when_its_moves_are_made(
    gpu: Gpu, group_bytes: int, num_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_blocks, "_GROUP_BYTES", group_bytes)
    shape = BlockShape(num_layers=5, num_kv_heads=2, block_size=4, head_dim=32, dtype=torch.float32)
    assert shape.num_bytes == 5 * 2 * 1024
    device, stream = device_of(gpu), LastMoment()
    device.side_stream = stream
    pool = gpu.randn(5, 2, 7, 2, 4, 32)
    blocks = HostBlocks(device, pool, shape, num_host_blocks=6)
    caches = ArrivingCaches(layer_caches(pool))
    rng = random.Random(group_bytes)
    moves = torch.tensor([(rng.randrange(13), rng.randrange(13)) for _ in range(20)], dtype=torch.int32)
    expected, _ = moved_one_by_one(pool.cpu().view(10, 7, -1), blocks._host.cpu().clone(), moves.tolist())
    caches.expect(blocks.move(*moves.T.contiguous().numpy()))
    assert len(stream.waiting) == num_groups
    for layer, cache in enumerate(caches):
        assert torch.equal(cache.k.cpu(), expected[2 * layer].view(7, 2, 4, 32))
        assert torch.equal(cache.v.cpu(), expected[2 * layer + 1].view(7, 2, 4, 32))
        assert len(stream.waiting) == sum(5 * i // num_groups > layer for i in range(num_groups))


@pytest.mark.gpu
def test_a_stream_waits_for_the_steps_and_they_for_it(real_gpu: Gpu) -> None:
    device = device_of(real_gpu)
    assert device.side_stream is not None
    there, moved, seen = (torch.zeros(1 << 20, device=real_gpu.device) for _ in range(3))
    torch.cuda.synchronize()

    def slowly(run: Callable[[], object]) -> None:
        torch.cuda._sleep(50_000_000)
        run()

    slowly(lambda: there.fill_(3))
    (wait,) = device.side_stream.run([lambda: slowly(lambda: moved.copy_(there))])
    wait()
    seen.copy_(moved)
    assert torch.equal(seen, torch.full_like(seen, 3))

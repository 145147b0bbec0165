"""Several ranks on emulated GPUs, whose exchanges go over gloo: they capture, replay and leave out alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.step_pipeline import StepPipeline
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.graphs.cuda_graph import CudaGraph
from splitserve.worker.graphs.cuda_graphs import CudaGraphs
from splitserve.worker.ops.cuda import CudaOps
from splitserve.worker.parallel.distributed import DistributedGroup
from splitserve.worker.worker import Worker
from tests.gpu.whole_worker import NUM_BLOCKS, emulated_device
from tests.worker.graphs.pairing import batch_of, decoding_jobs
from tests.worker.parallel.ranks import ParallelWorker, RankPool
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.driver import Driver

pytestmark = pytest.mark.slow

HOST_BLOCKS = 24
# Beyond those of the warm-up.
POISON = 60


@pytest.fixture(scope="module")
def ranks(emulated_ops: CudaOps, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    pool = RankPool(tmp_path_factory.mktemp("rendezvous"), 2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"), poisoned_token=POISON)


def config_of(checkpoint: Path, **settings: object) -> WorkerConfig:
    limits = {"num_threads": 1, "max_num_seqs": 6, "max_num_batched_tokens": 64, "block_size": 4}
    return WorkerConfig(model=str(checkpoint), tensor_parallel_size=2, **(limits | settings))  # type: ignore[arg-type]


def start(ranks: RankPool, config: WorkerConfig) -> ParallelWorker:
    parallel = ranks.load(config, emulated_device)
    parallel.init_kv_cache(NUM_BLOCKS, HOST_BLOCKS)
    return parallel


def graphs_of(worker: Worker) -> CudaGraphs:
    assert worker.loaded is not None
    assert isinstance(worker.loaded.placement.mesh.group, DistributedGroup)
    assert worker.runner is not None
    graphs = worker.runner.graphs
    assert isinstance(graphs, CudaGraphs)
    return graphs


def has_graphs(worker: Worker) -> bool:
    assert worker.runner is not None
    return worker.runner.graphs is not None


def captured(worker: Worker) -> list[int]:
    """Sizes that a rank has, in the order in which it captured them."""
    return list(graphs_of(worker)._graphs)


def state_of(worker: Worker) -> list[list[int]]:
    """What must never differ between ranks."""
    batch = batch_of(worker)
    occupied = np.flatnonzero(batch.occupied)
    tokens = [batch.tokens[row, : batch.num_tokens[row]].tolist() for row in occupied]
    computed = batch.num_computed[occupied].tolist()
    return [occupied.tolist(), computed, sorted(batch.failures), *tokens]


def assert_alike(parallel: ParallelWorker) -> None:
    first, *others = parallel.ask(state_of)
    assert others == [first] * len(others)


def rows_entering(count: int) -> SchedulerOutput:
    """Rows with three tokens each and room for 20."""
    rows = [
        NewRow(
            row,
            pack_int32([4, 5, 16 + row]),
            3,
            0,
            pack_int32(range(5 * row, 5 * row + 5)),
            SequenceSampling(seed=row, temperature=0.9),
        )
        for row in range(count)
    ]
    return SchedulerOutput(1, pack_int32(range(count)), pack_int32([3] * count), rows)


def decoding(*rows: int) -> SchedulerOutput:
    return SchedulerOutput(2, pack_int32(rows), pack_int32([1] * len(rows)))


def longest_wait_s(worker: Worker) -> float:
    assert isinstance(worker._device, CudaDevice)
    return worker._device.longest_wait_s


def test_a_rank_waits_for_its_gpu_as_long_as_for_an_exchange(ranks: RankPool, checkpoint: Path) -> None:
    parallel = ranks.load(config_of(checkpoint, exchange_timeout_s=17.0), emulated_device)
    assert parallel.ask(longest_wait_s) == [17.0] * 2


@dataclass
class CountReplays:
    """From here on a rank notes the sizes of the steps that its graphs run."""

    def __call__(self, worker: Worker) -> None:
        graphs = graphs_of(worker)
        sizes: list[int] = []
        for size, graph in graphs._graphs.items():
            graph.forward = _noting(sizes, size, graph)  # type: ignore[method-assign]
        graphs.replayed = sizes  # type: ignore[attr-defined]


def _noting(sizes: list[int], size: int, graph: CudaGraph) -> Callable[..., None]:
    forward = type(graph).forward

    def noted(*inputs: Any) -> None:
        sizes.append(size)
        forward(graph, *inputs)

    return noted


def replayed(worker: Worker) -> list[int]:
    return graphs_of(worker).replayed  # type: ignore[attr-defined]


def test_all_sizes_are_captured_at_the_start_and_none_by_one_rank_alone(
    ranks: RankPool, checkpoint: Path
) -> None:
    parallel = start(ranks, config_of(checkpoint))
    assert parallel.ask(captured) == [[6, 4, 2, 1]] * 2
    assert parallel.ask(Worker.prepare_ahead) == [False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_graphs_give_the_tokens_of_eager_steps(ranks: RankPool, tmp_path: Path, dtype: torch.dtype) -> None:
    config = config_of(write_tiny_llama(tmp_path, dtype=dtype))
    jobs = decoding_jobs(random.Random(7), VOCAB, featured=0.3)
    ended = []
    for enforce_eager in (True, False):
        parallel = start(ranks, msgspec.structs.replace(config, enforce_eager=enforce_eager))
        if not enforce_eager:
            parallel.ask(CountReplays())
        done = [job.again() for job in jobs]
        driver = Driver(parallel, config, NUM_BLOCKS, random.Random(1), HOST_BLOCKS)
        driver.run(done)
        assert_alike(parallel)
        ended.append([(job.tokens, sorted(job.logprobs), job.error) for job in done])
    first, second = parallel.ask(replayed)
    assert first == second
    assert {2, 4, 6} <= set(first)
    assert ended[0] == ended[1]


@dataclass
class FindNoMemory:
    """One rank finds no memory for a size: for its tensors, or for the graph."""

    rank: int
    size: int
    method: str

    def __call__(self, worker: Worker) -> None:
        if worker._config.place.rank == self.rank:
            graphs = graphs_of(worker)
            graphs._make = self._failing(graphs._make)  # type: ignore[method-assign,assignment]

    def _failing(self, make: Callable[[int], CudaGraph]) -> Callable[[int], CudaGraph]:
        def failing(size: int) -> CudaGraph:
            if size == self.size and self.method == "make":
                raise torch.OutOfMemoryError("CUDA out of memory")
            graph: CudaGraph = make(size)
            if size == self.size:
                graph.capture = _out_of_memory  # type: ignore[method-assign]
            return graph

        return failing


def _out_of_memory() -> CudaGraph:
    raise torch.OutOfMemoryError("CUDA out of memory")


@dataclass
class MoveBuffers:
    """As if a step had been larger than all before: of the layers, or of what is exchanged."""

    of_group: bool

    def __call__(self, worker: Worker) -> None:
        graphs = graphs_of(worker)
        group = graphs._group
        assert isinstance(group, DistributedGroup)
        workspace = group._buffers if self.of_group else graphs._model.workspace
        workspace.take("parts of torch.float32" if self.of_group else "residual", 4000, 64)


@pytest.mark.parametrize("method", ["make", "capture"])
@pytest.mark.parametrize(("rank", "of_group"), [(0, True), (1, False)])
def test_a_size_that_finds_no_memory_on_one_rank_runs_eagerly_on_all(
    ranks: RankPool, checkpoint: Path, rank: int, of_group: bool, method: str
) -> None:
    parallel = start(ranks, config_of(checkpoint))
    before = parallel.ask(captured)
    parallel.ask(FindNoMemory(rank, 2, method))
    parallel.ask(MoveBuffers(of_group))
    parallel.execute(rows_entering(3))
    for rows in ((0, 1, 2), (0, 1), (2,), (1, 2, 0)):
        output = parallel.execute(decoding(*rows))
        assert len(unpack_int32(output.token_ids)) == len(rows)
        assert_alike(parallel)
    assert before == [[6, 4, 2, 1]] * 2
    # The size of one row came too late.
    assert parallel.ask(captured) == [[6, 4]] * 2


@dataclass
class RunAhead:
    """Runs steps as a worker's process does, on ranks that find the next one there or have to wait for it.

    Attributes:
        patient: ranks that answer a step before they see the next one.
    """

    steps: list[SchedulerOutput]
    patient: set[int]
    answers: list[ModelRunnerOutput] = field(default_factory=list)

    def __call__(self, worker: Worker) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
        """Rows, tokens and failed rows of each step."""
        pipeline = StepPipeline(worker, self.answers.append)
        for step in self.steps:
            pipeline.run(step, 0.0)
            if worker._config.place.rank in self.patient:
                pipeline.settle()
        pipeline.settle()
        return (
            [unpack_int32(output.rows).tolist() for output in self.answers],
            [unpack_int32(output.token_ids).tolist() for output in self.answers],
            [[error.row for error in output.errors] for output in self.answers],
        )


@dataclass
class DrawPoison:
    """As if a row had drawn the poisoned token last."""

    row: int

    def __call__(self, worker: Worker) -> None:
        batch = batch_of(worker)
        batch.tokens[self.row, batch.num_tokens[self.row] - 1] = POISON


def test_a_row_fails_in_the_same_step_on_ranks_that_are_ahead_and_on_those_that_are_not(
    ranks: RankPool, checkpoint: Path
) -> None:
    parallel = start(ranks, config_of(checkpoint))
    freed = SchedulerOutput(9, pack_int32([0, 2, 3]), pack_int32([1] * 3), freed_rows=pack_int32([1]))
    steps = [decoding(0, 1, 2, 3)] * 4 + [freed] + [decoding(3, 0, 2)] * 3
    heard = []
    for patient in (set[int](), {0}, {1}, {0, 1}):
        parallel.execute(rows_entering(4))
        parallel.ask(DrawPoison(1))
        first, second = parallel.ask(RunAhead(steps, patient))
        # The second rank has no tokens of steps that run eagerly.
        for _, _, failed in (first, second):
            assert failed == [[1]] * 4 + [[]] * 4
        heard.append(first)
        assert_alike(parallel)
        parallel.execute(SchedulerOutput(3, b"", b"", freed_rows=pack_int32([0, 2, 3])))
    assert heard == [heard[0]] * 4
    assert all(len(tokens) == 3 for tokens in heard[0][1])


@dataclass
class LogMemory:
    """From here on a rank notes what moves its memory: steps by their tokens, and captures."""

    def __call__(self, worker: Worker) -> None:
        assert worker.loaded is not None
        model, device = worker.loaded.model, worker._device
        assert isinstance(device, CudaDevice)
        forward, capture = model.forward, device.capture
        log: list[object] = []

        def noted_forward(token_ids: torch.Tensor, *rest: object) -> object:
            log.append(len(token_ids))
            return forward(token_ids, *rest)  # type: ignore[arg-type]

        def noted_capture(run: Callable[[], object]) -> Callable[[], object]:
            log.append("capture")
            return capture(run)

        model.forward = noted_forward  # type: ignore[method-assign,assignment]
        device.capture = noted_capture  # type: ignore[method-assign]
        worker.log = log  # type: ignore[attr-defined]


def log_of(worker: Worker) -> list[object]:
    return worker.log  # type: ignore[attr-defined]


def test_the_largest_steps_run_again_after_captures_which_may_have_taken_their_memory(
    ranks: RankPool, checkpoint: Path
) -> None:
    parallel = ranks.load(config_of(checkpoint), emulated_device)
    parallel.ask(LogMemory())
    parallel.init_kv_cache(NUM_BLOCKS)
    for log in parallel.ask(log_of):
        # The ladder in two halves each, the largest steps twice, and the warm-up with its two prompts.
        first, last = log.index("capture"), len(log) - log[::-1].index("capture")
        assert log[:first].count(64) == 2
        assert log[last:] == [64, 64, 32, 1, 2]
        assert log.count("capture") == 8


@dataclass
class NoRoomForLargeSteps:
    """Steps of so many tokens find no memory."""

    num_tokens: int

    def __call__(self, worker: Worker) -> None:
        assert worker.loaded is not None
        model = worker.loaded.model
        forward = model.forward

        def short(token_ids: torch.Tensor, *rest: object) -> object:
            if len(token_ids) >= self.num_tokens:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return forward(token_ids, *rest)  # type: ignore[arg-type]

        model.forward = short  # type: ignore[method-assign,assignment]


def test_too_little_memory_for_the_largest_step_ends_the_start_with_what_to_lower(
    ranks: RankPool, checkpoint: Path
) -> None:
    parallel = ranks.load(config_of(checkpoint), emulated_device)
    parallel.ask(NoRoomForLargeSteps(64))
    lower = "no memory for a step of --max-num-batched-tokens 64: lower it, --num-blocks"
    with pytest.raises(ConfigError, match=lower):
        parallel.init_kv_cache(NUM_BLOCKS)


def test_a_pool_smaller_than_the_largest_step_holds_its_memory_too(ranks: RankPool, checkpoint: Path) -> None:
    parallel = ranks.load(config_of(checkpoint), emulated_device)
    parallel.init_kv_cache(3)
    parallel.execute(SchedulerOutput(1, b"", b""))
    assert parallel.ask(captured) == [[6, 4, 2, 1]] * 2


def test_stages_of_ranks_hold_their_memory_and_capture_nothing(
    emulated_ops: CudaOps, checkpoint: Path, tmp_path: Path
) -> None:
    pool = RankPool(tmp_path, 4)
    try:
        config = config_of(checkpoint, pipeline_parallel_size=2)
        parallel = pool.load(config, emulated_device)
        parallel.init_kv_cache(NUM_BLOCKS)
        output = parallel.execute(rows_entering(3))
        assert len(unpack_int32(output.token_ids)) == 3
        assert parallel.ask(has_graphs) == [False] * 4
    finally:
        pool.close()

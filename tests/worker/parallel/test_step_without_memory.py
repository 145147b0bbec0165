"""One of several ranks finds no memory for a step: all take it back, and everybody gets their tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.worker.parallel.ranks import RankPool
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.test_engine_core import Loop, random_requests
from tests.worker.runner.test_out_of_memory import ShortMemory


def owner_of(worker: Worker, method: str) -> object:
    assert worker.loaded is not None
    return worker.loaded.placement.mesh.group if method == "sum_into" else worker.loaded.model


@dataclass
class Restrict:
    """On one rank calls find no memory, all or some: of a whole step, amid its layers, or for its logits."""

    rank: int
    where: str
    is_random: bool = True

    def __call__(self, worker: Worker) -> None:
        if worker._config.place.rank == self.rank:
            owner = owner_of(worker, self.where)
            rng = random.Random(5) if self.is_random else None
            short = ShortMemory(getattr(owner, self.where), rng, 1000 if self.is_random else 0)
            setattr(owner, self.where, short)


@dataclass
class Release:
    """There is memory again."""

    where: str

    def __call__(self, worker: Worker) -> None:
        owner = owner_of(worker, self.where)
        call = getattr(owner, self.where)
        if isinstance(call, ShortMemory):
            setattr(owner, self.where, call._call)


@dataclass
class CountFailures:
    """How often each rank found no memory."""

    where: str

    def __call__(self, worker: Worker) -> int:
        owner = owner_of(worker, self.where)
        call = getattr(owner, self.where)
        return call.num_failed if isinstance(call, ShortMemory) else 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("num_ranks", "rank", "where"),
    [(2, 0, "forward"), (2, 1, "sum_into"), (2, 0, "compute_logits"), (4, 2, "sum_into")],
)
def test_everybody_gets_their_tokens(
    depth: int, num_ranks: int, rank: int, where: str, ranks: RankPool, tmp_path: Path
) -> None:
    config = WorkerConfig(
        model=str(write_tiny_llama(tmp_path)),
        tensor_parallel_size=num_ranks,
        num_threads=1,
        max_num_seqs=5,
        max_num_batched_tokens=32,
        block_size=4,
        # A recorded step calls the model once, so only sums of other steps are many.
        enforce_eager=where != "sum_into",
    )
    parallel = ranks.load(config)
    rng = random.Random(2)
    requests = random_requests(rng, 12)
    untroubled = [request.again() for request in requests]
    Loop(parallel, config, parallel.loaded[0], depth).run(untroubled, rng)  # type: ignore[arg-type]
    loop = Loop(parallel, config, parallel.loaded[0], depth)  # type: ignore[arg-type]
    parallel.ask(Restrict(rank, where))
    loop.run(requests, rng)
    failures = parallel.ask(CountFailures(where))
    assert failures[rank] > 1
    assert sum(failures) == failures[rank]
    assert loop.engine.stats().num_preemptions > 0
    codes = []
    for request, calm in zip(requests, untroubled, strict=True):
        assert request.finished is not None
        codes.append(request.finished.error_code)
        # One token that finds no room ends its request.
        if request.finished.error_code != "out_of_memory":
            assert request.heard() == calm.heard()
    assert codes.count("out_of_memory") < len(requests) // 2


def test_a_token_that_never_fits_ends_its_request_and_not_the_ranks(ranks: RankPool, tmp_path: Path) -> None:
    config = WorkerConfig(
        model=str(write_tiny_llama(tmp_path)),
        tensor_parallel_size=2,
        num_threads=1,
        max_num_seqs=2,
        max_num_batched_tokens=32,
        block_size=4,
        enforce_eager=True,
    )
    parallel = ranks.load(config)
    request, *_ = random_requests(random.Random(3), 1)
    untroubled = request.again()
    Loop(parallel, config, parallel.loaded[0]).run([untroubled])  # type: ignore[arg-type]
    loop = Loop(parallel, config, parallel.loaded[0])  # type: ignore[arg-type]
    parallel.ask(Restrict(1, "sum_into", is_random=False))
    loop.run([request])
    assert request.finished is not None
    assert request.finished.error_code == "out_of_memory"
    parallel.ask(Release("sum_into"))
    again = request.again()
    loop.run([again])
    assert again.heard() == untroubled.heard()

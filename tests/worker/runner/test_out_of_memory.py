"""Steps that do not fit the memory, through the real engine: everybody gets the tokens of a calm run."""

from __future__ import annotations

import random
import weakref
from pathlib import Path
from typing import cast

import pytest
import torch

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.parallel.mesh import Mesh
from splitserve.worker.parallel.stage import Stage
from splitserve.worker.worker import Worker
from tests.worker.runner.test_engine_core import Loaded, Loop, random_requests


class ShortMemory:
    """Stands before Decoder.forward or compute_logits: some calls, or all above a size, find no memory."""

    def __init__(self, call, rng: random.Random | None, max_rows: int) -> None:  # type: ignore[no-untyped-def]
        self._call = call
        self._rng = rng
        self._max_rows = max_rows
        self.num_failed = 0

    def __call__(self, x: torch.Tensor, *rest: object) -> torch.Tensor:
        if len(x) > self._max_rows or (self._rng is not None and self._rng.random() < 0.1):
            self.num_failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self._call(x, *rest)


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> Loaded:
    # A recorded step calls the model once.
    config = WorkerConfig(
        model=str(tiny_llama),
        num_threads=1,
        max_num_seqs=5,
        max_num_batched_tokens=32,
        block_size=4,
        enforce_eager=True,
    )
    worker = Worker(config)
    return worker, config, worker.load()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", ["forward", "compute_logits"])
@pytest.mark.parametrize(("seed", "max_rows"), [(1, 1000), (2, 5)])
def test_everybody_gets_their_tokens(
    depth: int,
    name: str,
    seed: int,
    max_rows: int,
    tiny: Loaded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, 12)
    untroubled = [request.again() for request in requests]
    Loop(*tiny, depth).run(untroubled, rng)
    model = tiny[0].loaded.model
    short = ShortMemory(getattr(model, name), rng, max_rows)
    loop = Loop(*tiny, depth)
    monkeypatch.setattr(model, name, short, raising=False)
    loop.run(requests, rng)
    assert short.num_failed > 1
    assert loop.engine.stats().num_preemptions > 0
    for request, calm in zip(requests, untroubled, strict=True):
        assert request.finished is not None
        # Too many attempts without a new token end a request.
        if request.finished.error_code != "out_of_memory":
            assert request.heard() == calm.heard()
    codes = [request.finished.error_code for request in requests]
    assert codes.count("out_of_memory") <= 1


def test_what_a_step_took_is_free_when_memory_is_given_back(
    tiny: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, *_ = tiny
    worker.init_kv_cache(40)
    taken: list[weakref.ref[torch.Tensor]] = []
    was_free: list[bool] = []

    def forward(*args: object) -> None:
        activations = torch.zeros(3)
        taken.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(worker.loaded.model, "forward", forward, raising=False)
    monkeypatch.setattr(worker._device, "release_unused", lambda: was_free.append(taken[0]() is None))
    row = NewRow(0, pack_int32([5, 6]), 2, 0, pack_int32([1]), SequenceSampling(seed=1))
    output = worker.execute(SchedulerOutput(1, pack_int32([0]), pack_int32([2]), [row]))
    assert [error.code for error in output.errors] == ["out_of_memory"]
    assert was_free == [True]


def test_where_other_stages_cannot_be_told_the_worker_ends(
    tiny: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, *_ = tiny
    worker.init_kv_cache(40)
    runner = worker.runner
    assert runner is not None
    monkeypatch.setattr(runner, "_mesh", Mesh(stage=cast("Stage", object())))
    short = ShortMemory(None, None, max_rows=0)
    monkeypatch.setattr(worker.loaded.model, "forward", short, raising=False)
    row = NewRow(0, pack_int32([5, 6]), 2, 0, pack_int32([1]), SequenceSampling(seed=1))
    with pytest.raises(torch.OutOfMemoryError):
        worker.execute(SchedulerOutput(1, pack_int32([0]), pack_int32([2]), [row]))

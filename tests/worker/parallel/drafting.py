"""What tests of drafts over ranks and stages share: workers that draft, and what they are asked and told."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import msgspec

from splitserve.worker.config import WorkerConfig
from splitserve.worker.speculation.stage_drafting import StageDrafting
from splitserve.worker.worker import Worker
from tests.worker.parallel.ranks import ParallelWorker
from tests.worker.runner.test_engine_core import Loop, Served
from tests.worker.runner.test_speculation import Prophet


@dataclass
class Prophesy:
    """The rank that samples drafts what requests are known to get, and some mistakes."""

    known: list[Served]

    def __call__(self, worker: Worker) -> None:
        runner, config = worker.runner, worker._config
        assert runner is not None
        drafting = runner.drafting
        assert drafting is not None
        if config.place.rank != config.output_rank:
            return
        prophet = Prophet(runner.batch, self.known, random.Random(8))
        if isinstance(drafting, StageDrafting):
            drafting.speculator = prophet  # type: ignore[assignment]
        else:
            runner.drafting = drafting._replace(speculator=prophet)  # type: ignore[arg-type]


class SeenByRank:
    """How many tokens each rank has of its rows, and how many drafts were counted right and wrong."""

    def __call__(self, worker: Worker) -> tuple[int, int, int]:
        runner = worker.runner
        assert runner is not None
        assert runner.drafting is not None
        prophet = runner.drafting.speculator
        seen = prophet.seen if isinstance(prophet, Prophet) else {"right": 0, "wrong": 0}
        return int(runner.batch.num_tokens.sum()), seen["right"], seen["wrong"]


class FreeDrafts:
    """What a draft costs here would be a matter of time."""

    def __call__(self, worker: Worker) -> None:
        assert worker.runner is not None
        assert worker.runner.drafting is not None
        prices = worker.runner.drafting.speculator._prices
        prices.took = lambda *_: None  # type: ignore[method-assign]
        prices.of_a_draft = lambda *_: 0.0  # type: ignore[method-assign]


def ranks_of(model: Path, **settings: object) -> WorkerConfig:
    """The configuration of small workers for a model; the settings say how many."""
    config = WorkerConfig(
        model=str(model), num_threads=1, max_num_seqs=5, max_num_batched_tokens=32, block_size=4
    )
    return msgspec.structs.replace(config, **settings)


def loop_on(workers: ParallelWorker, max_drafts: int = 0) -> Loop:
    return Loop(workers, workers.config, workers.loaded[0], max_drafts=max_drafts)  # type: ignore[arg-type]

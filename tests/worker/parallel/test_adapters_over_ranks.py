"""Adapters over several ranks and stages: the tokens of one rank, each with its own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from splitserve.engine_core.ipc.worker_messages import NO_ADAPTER, LoadAdapter
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.worker.lora.adapters import deltas_of, write_adapter
from tests.worker.parallel.both import MakeBoth, assert_close, make_both
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.driver import Job

__all__ = ["make_both"]


@pytest.mark.parametrize(("num_ranks", "num_stages"), [(2, 1), (2, 2)])
def test_several_ranks_give_the_tokens_of_one(
    num_ranks: int, num_stages: int, make_both: MakeBoth, tmp_path: Path
) -> None:
    both = make_both(write_tiny_llama(tmp_path / "tiny"), num_ranks, num_stages=num_stages, num_adapters=2)
    for slot in range(2):
        path = write_adapter(tmp_path / str(slot), deltas_of(slot, 4 + slot), rank=4 + slot, alpha=6)
        message = LoadAdapter(slot, slot, str(path))
        answers = [each.load_adapter(message) for each in (both.single, both.parallel)]
        assert len({answer.digest for answer in answers}) == 1
        assert not any(answer.error for answer in answers)
    rng = random.Random(3)
    sampling = SequenceSampling(temperature=0.0, seed=0, logprobs=1, ignore_eos=True)
    jobs = [
        Job([rng.randrange(5, VOCAB) for _ in range(7 + 3 * i)], sampling, 8, (0, NO_ADAPTER, 1)[i % 3])
        for i in range(6)
    ]
    expected, found = both.run_single(jobs), both.run_parallel(jobs, random.Random(num_stages))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens
        assert_close(ours, theirs, tolerance=1e-4)
    (first, *_), (plain, *_) = expected, both.run_single([Job(jobs[0].prompt, sampling, 8)])
    assert first.tokens != plain.tokens
    wrong = both.parallel.load_adapter(LoadAdapter(9, 0, str(tmp_path)))
    assert "is no adapter" in wrong.error

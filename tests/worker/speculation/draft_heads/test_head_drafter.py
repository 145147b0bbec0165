"""A head drafts what follows from all that the model computed, and changes no token."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.speculation.draft_heads.making import make_head_drafter
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.test_engine_core import NUM_BLOCKS, POISON, Loop, Served, random_requests
from tests.worker.runner.test_speculation import constrained
from tests.worker.speculation.draft_heads.always_head import AlwaysHead
from tests.worker.speculation.draft_heads.head_checkpoint import write_head
from tests.worker.speculation.free_drafts import make_free


@pytest.fixture(autouse=True)
def _free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_free(monkeypatch)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Worker, WorkerConfig]:
    """A worker with a model and a head; one token of the model's is poisoned."""
    folder = tmp_path_factory.mktemp("head")
    config = WorkerConfig(
        model=str(write_tiny_llama(folder / "model", poisoned_token=POISON)),
        num_threads=1,
        max_num_seqs=5,
        max_num_batched_tokens=32,
        block_size=4,
        speculate="eagle",
        speculative_model=str(write_head(folder / "head")),
    )
    worker = Worker(config)
    worker.load()
    return worker, config


def always_draft(
    worker: Worker, other: Worker, *, may_pause: bool = True, records: bool = True
) -> AlwaysHead:
    runner, loaded = worker.runner, worker.loaded
    assert runner is not None
    assert loaded is not None
    assert loaded.draft is not None
    drafter = make_head_drafter(loaded.draft, loaded.model, runner._sampler, 0, records=records)
    always = AlwaysHead(drafter, other, may_pause=may_pause)
    runner.drafting = always.drafting()
    return always


@pytest.mark.parametrize("depth", [1, 2], ids=["one-step", "two-steps"])
def test_drafts_change_nothing_and_are_those_of_the_whole_text(
    loaded: tuple[Worker, WorkerConfig], depth: int
) -> None:
    worker, config = loaded
    ready = worker.load()
    other = Worker(config)
    other.load()
    seen: Counter[str] = Counter()
    for seed in range(3):
        rng = random.Random(seed)
        requests = constrained(random_requests(rng, 16), rng)
        plain = Loop(worker, config, ready, depth)
        plain.run(requests, rng)
        drafting = [each.again() for each in requests]
        loop = Loop(worker, config, ready, depth, rng.choice([1, 2, 4, 8]))
        always = always_draft(worker, other)
        loop.run(drafting, rng)
        assert [each.heard() for each in drafting] == [each.heard() for each in requests]
        stats = loop.engine.stats()
        assert stats.num_free_blocks == NUM_BLOCKS
        seen += always.seen
        seen.update(saved=plain.engine.stats().num_steps - stats.num_steps)
        seen.update(preempted=stats.num_preemptions, cached=stats.prefix_cache_hits)
    for name in ("saved", "preempted", "cached", "begun anew", "counted", "timed"):
        assert seen[name] > 0, seen


def test_a_row_goes_on_from_pairs_that_others_left_in_the_cache(loaded: tuple[Worker, WorkerConfig]) -> None:
    worker, config = loaded
    loop = Loop(worker, config, worker.load(), max_drafts=4)
    other = Worker(config)
    other.load()
    always = always_draft(worker, other, may_pause=False)
    prompt = list(range(10, 31))
    for seed, tail in enumerate(([], [40, 41], [50])):
        sampling = SequenceSampling(seed=seed, max_tokens=30, ignore_eos=True)
        loop.run([Served(prompt + tail, sampling)])
    assert loop.engine.stats().prefix_cache_hits > 0
    assert always.seen["begun anew"] == 0
    # The token behind the last block that is shared is the same.
    assert always.seen["begun in the cache"] > 20
    assert always.seen["differing"] == 0


def test_two_drafters_save_steps_and_are_counted_each_for_itself(loaded: tuple[Worker, WorkerConfig]) -> None:
    _, config = loaded
    methods = '{"method": ["ngram", "eagle3"], "num_speculative_tokens": 4}'
    rng = random.Random(6)
    requests = [
        Served(
            [rng.randrange(8, VOCAB) for _ in range(6)] * 3,
            SequenceSampling(seed=seed, max_tokens=60, ignore_eos=True, presence_penalty=0.5, logprobs=0),
        )
        for seed in range(3)
    ]
    heard = []
    for speculate, text, model, max_drafts in (
        ("none", "", "", 0),
        ("auto", methods, config.speculative_model, 4),
    ):
        changes = {"speculate": speculate, "speculative_config": text, "speculative_model": model}
        worker = Worker(msgspec.structs.replace(config, **changes))
        loop = Loop(worker, config, worker.load(), max_drafts=max_drafts)
        served = [each.again() for each in requests]
        loop.run(served)
        heard.append([each.heard() for each in served])
    assert heard[0] == heard[1]
    stats = loop.engine.stats()
    drafted = {each.method: sum(each.drafted) for each in stats.drafts}
    assert drafted["ngram"] > 0
    assert drafted["eagle3"] > 0
    assert sum(drafted.values()) == stats.draft_tokens

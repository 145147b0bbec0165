"""A draft model on the last stage drafts what it says of the row's whole text, and changes no token."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from splitserve.worker.speculation.draft_model.draft_model import DraftModel
from splitserve.worker.speculation.draft_model.making import make_draft_model
from splitserve.worker.speculation.stage_drafting import StageDrafting
from splitserve.worker.worker import Worker
from tests.worker.parallel.drafting import loop_on, ranks_of
from tests.worker.parallel.ranks import RankPool
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.test_engine_core import NUM_BLOCKS, POISON, random_requests
from tests.worker.runner.test_speculation import constrained
from tests.worker.speculation.draft_model.always import Always
from tests.worker.speculation.draft_model.test_draft_model import write_draft


class AlwaysDraft:
    """The rank that samples drafts for every row, and compares with who reads all of its text."""

    def __call__(self, worker: Worker) -> None:
        runner, loaded = worker.runner, worker.loaded
        assert runner is not None
        assert loaded is not None
        drafting = runner.drafting
        assert isinstance(drafting, StageDrafting)
        if loaded.draft is None:
            assert drafting.draft_model is None
            return
        assert isinstance(drafting.draft_model, DraftModel)
        fresh = make_draft_model(loaded.draft, runner._sampler, 0, records=False)
        always = Always(drafting.draft_model, fresh, is_ahead=True)
        drafting.speculator = always  # type: ignore[assignment]


class Seen:
    """What Always saw on the rank that samples."""

    def __call__(self, worker: Worker) -> Counter[str]:
        assert worker.runner is not None
        drafting = worker.runner.drafting
        speculator = None if drafting is None else drafting.speculator
        return speculator.seen if isinstance(speculator, Always) else Counter()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_drafts_change_nothing_and_are_those_of_the_whole_text(
    num_ranks: int, ranks: RankPool, tmp_path: Path
) -> None:
    model = write_tiny_llama(tmp_path / "model", poisoned_token=POISON)
    plain = ranks_of(model, pipeline_parallel_size=2, tensor_parallel_size=num_ranks)
    draft = write_draft(tmp_path / "draft", noise=0.03)
    text = json.dumps({"model": str(draft), "num_speculative_tokens": 4})
    drafting = msgspec.structs.replace(plain, speculative_config=text)
    heard, stats, seen = [], [], Counter[str]()
    for config, max_drafts in ((plain, 0), (drafting, 4)):
        workers = ranks.load(config)
        for seed in range(3):
            rng = random.Random(seed)
            requests = constrained(random_requests(rng, 12), rng)
            loop = loop_on(workers, max_drafts)
            if max_drafts:
                workers.ask(AlwaysDraft())
            loop.run(requests)
            heard.append([each.heard() for each in requests])
            stats.append(loop.engine.stats())
            seen += workers.ask(Seen())[-num_ranks]
    assert heard[:3] == heard[3:]
    assert all(each.num_free_blocks == NUM_BLOCKS for each in stats)
    assert sum(each.num_steps for each in stats[3:]) < sum(each.num_steps for each in stats[:3])
    assert sum(each.num_preemptions for each in stats[3:]) > 0
    assert sum(each.prefix_cache_hits for each in stats[3:]) > 0
    assert 0.5 * seen["drafted"] < seen["counted"] < seen["drafted"], seen
    # The draft model and its cache are on the rank that samples alone.
    own, *others = [each.block_bytes for each in reversed(workers.loaded)][num_ranks - 1 :]
    assert all(own > other for other in others)

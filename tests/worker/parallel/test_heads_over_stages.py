"""A head or MTP layer drafts on the last stage what it drafts of the whole model, and no token changes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.speculation.draft_heads.head_drafter import HeadDrafter
from splitserve.worker.speculation.draft_sheet import DraftSheet
from splitserve.worker.worker import Worker
from tests.checkpoints import CheckpointCache
from tests.worker.parallel.drafting import FreeDrafts, loop_on, ranks_of
from tests.worker.parallel.ranks import RankPool
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.test_engine_core import NUM_BLOCKS, Loop, Served
from tests.worker.speculation.draft_heads.head_checkpoint import CONFIG, head_weights, write_head
from tests.worker.speculation.draft_heads.test_mtp import write_mtp

Drafts = dict[tuple[int, ...], list[int]]


class NotedDrafts:
    """Keeps what a HeadDrafter drafts, by the text behind which it does."""

    def __init__(self, drafter: HeadDrafter) -> None:
        self.drafts: Drafts = {}
        self._drafter, self._draft = drafter, drafter.draft

    def __call__(self, sheet: DraftSheet) -> None:
        rows = sheet.allowed_rows().tolist()
        self._draft(sheet)
        batch = self._drafter._batch
        for row in rows:
            # A row that was not read from its beginning knows less.
            if self._drafter._coverage.begins[row] == 0:
                text = batch.tokens[row, : batch.num_tokens[row]].tolist()
                self.drafts[tuple(text)] = sheet.drafts(row)


class Note:
    """The rank that drafts notes from now on what it drafts."""

    def __call__(self, worker: Worker) -> None:
        assert worker.runner is not None
        assert worker.runner.drafting is not None
        if isinstance(drafter := worker.runner.drafting.draft_model, HeadDrafter):
            drafter.draft = NotedDrafts(drafter)  # type: ignore[method-assign]


class Noted:
    """What it has noted; None on other ranks."""

    def __call__(self, worker: Worker) -> Drafts | None:
        assert worker.runner is not None
        assert worker.runner.drafting is not None
        drafter = worker.runner.drafting.draft_model
        draft = None if drafter is None else drafter.draft
        return draft.drafts if isinstance(draft, NotedDrafts) else None


def drafts_of_one(config: WorkerConfig, requests: list[Served]) -> Drafts:
    """What one worker drafts that has all layers."""
    alone = msgspec.structs.replace(config, tensor_parallel_size=1, pipeline_parallel_size=1)
    worker = Worker(alone)
    loop = Loop(worker, alone, worker.load(), max_drafts=4)
    FreeDrafts()(worker)
    Note()(worker)
    loop.run([each.again() for each in requests])
    noted = Noted()(worker)
    assert noted is not None
    return noted


def write_pair(folder: Path, *, is_tied: bool) -> tuple[Path, Path]:
    """A model of six layers, and a head that reads it in the first, second and last two of them."""
    model = write_tiny_llama(folder / "model", num_layers=6, is_tied=is_tied)
    changes = {"draft_vocab_size": None, "eagle_aux_hidden_state_layer_ids": [1, 3, 6]}
    weights = head_weights(CONFIG | changes | {"draft_vocab_size": 1})
    # The embedding is the model's, and in the end so is the output head.
    weights = {name: each for name, each in weights.items() if name not in ("d2t", "t2d", "lm_head.weight")}
    return model, write_head(folder / "head", weights, **changes)


@pytest.mark.parametrize(
    ("method", "num_ranks", "num_stages"),
    [("eagle3", 1, 3), ("eagle3-tied", 1, 2), ("eagle3", 2, 2), ("mtp", 1, 2)],
)
def test_a_head_drafts_on_the_last_stage_as_on_one(
    method: str,
    num_ranks: int,
    num_stages: int,
    ranks: RankPool,
    checkpoints: CheckpointCache,
    tmp_path: Path,
) -> None:
    sizes = {"tensor_parallel_size": num_ranks, "pipeline_parallel_size": num_stages}
    if method == "mtp":
        plain = ranks_of(write_mtp(checkpoints, tmp_path / "model"), **sizes)
        drafting = msgspec.structs.replace(plain, speculate="mtp")
    else:
        model, head = write_pair(tmp_path, is_tied=method == "eagle3-tied")
        plain = ranks_of(model, **sizes)
        drafting = msgspec.structs.replace(plain, speculative_model=str(head), speculate="eagle")
    requests = [
        Served(
            list(range(10 + seed, 40)),
            SequenceSampling(seed=seed, max_tokens=30, ignore_eos=True, logprobs=1, temperature=0.7),
        )
        for seed in range(4)
    ]
    loop_on(ranks.load(plain)).run(requests)
    workers = ranks.load(drafting)
    loop = loop_on(workers, max_drafts=4)
    workers.ask(FreeDrafts())
    workers.ask(Note())
    served = [each.again() for each in requests]
    loop.run(served)
    assert [each.heard() for each in served] == [each.heard() for each in requests]
    stats = loop.engine.stats()
    assert stats.num_free_blocks == NUM_BLOCKS
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    (counts,) = stats.drafts
    assert sum(counts.counted) > 0
    *others, noted = [each for each in workers.ask(Noted()) if each is not None]
    assert not others
    expected = drafts_of_one(drafting, requests)
    both = [(noted[text], expected[text]) for text in noted.keys() & expected.keys()]
    assert all(ours[: len(theirs)] == theirs[: len(ours)] for ours, theirs in both)
    assert sum(min(len(ours), len(theirs)) for ours, theirs in both) > 10

"""A head or MTP layer drafts on the first of several ranks what it drafts of one, and no token changes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.ipc.wire import DraftCounts
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.checkpoints import CheckpointCache
from tests.worker.parallel.drafting import FreeDrafts, loop_on, ranks_of
from tests.worker.parallel.ranks import RankPool
from tests.worker.runner.checkpoints import write_tiny_llama
from tests.worker.runner.test_engine_core import Loop, Served
from tests.worker.speculation.draft_heads.head_checkpoint import head_weights, write_head
from tests.worker.speculation.draft_heads.test_mtp import write_mtp


def drafts_of_one(config: WorkerConfig, requests: list[Served]) -> list[DraftCounts]:
    """What one worker without other ranks drafts."""
    alone = msgspec.structs.replace(config, tensor_parallel_size=1)
    worker = Worker(alone)
    loop = Loop(worker, alone, worker.load(), max_drafts=4)
    FreeDrafts()(worker)
    loop.run([each.again() for each in requests])
    return loop.engine.stats().drafts


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_a_head_drafts_on_the_first_rank_as_on_one(
    method: str, ranks: RankPool, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    if method == "mtp":
        plain = ranks_of(write_mtp(checkpoints, tmp_path / "model"), tensor_parallel_size=2)
        drafting = msgspec.structs.replace(plain, speculate="mtp")
    else:
        plain = ranks_of(write_tiny_llama(tmp_path / "model"), tensor_parallel_size=2)
        weights = head_weights()
        # The embedding is the model's, and in the end so is the output head.
        weights = {
            name: each for name, each in weights.items() if name not in ("d2t", "t2d", "lm_head.weight")
        }
        # States behind the last layer: whoever reads them has all tokens computed to the end.
        changes = {"draft_vocab_size": None, "eagle_aux_hidden_state_layer_ids": [1, 2]}
        head = write_head(tmp_path / "head", weights, **changes)
        drafting = msgspec.structs.replace(plain, speculative_model=str(head), speculate="eagle")
    requests = [
        Served(
            list(range(10 + seed, 40)),
            SequenceSampling(seed=seed, max_tokens=30, ignore_eos=True, logprobs=1, temperature=0.7),
        )
        for seed in range(3)
    ]
    loop_on(ranks.load(plain)).run(requests)
    workers = ranks.load(drafting)
    loop = loop_on(workers, max_drafts=4)
    workers.ask(FreeDrafts())
    served = [each.again() for each in requests]
    loop.run(served)
    assert [each.heard() for each in served] == [each.heard() for each in requests]
    (counts,) = loop.engine.stats().drafts
    assert counts.method == method
    assert sum(counts.counted) > 0
    assert [counts] == drafts_of_one(drafting, requests)
    # The head, its cache and a whole vocabulary are on rank 0 alone.
    assert workers.loaded[0].block_bytes > workers.loaded[1].block_bytes

"""Rank 0 drafts and all ranks compute the drafts: nobody's tokens, logprobs or ends change."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
import torch
from llguidance import LLMatcher

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.worker import Worker
from tests.worker.lora.adapters import deltas_of, write_adapter
from tests.worker.parallel.drafting import FreeDrafts, Prophesy, SeenByRank, loop_on, ranks_of
from tests.worker.parallel.ranks import RankPool
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.test_engine_core import NUM_BLOCKS, POISON, Served, random_requests
from tests.worker.runner.test_speculation import constrained
from tests.worker.speculation.draft_model.test_draft_model import write_draft


@dataclass
class FailTwice:
    """On one rank two exchanges of two steps find no memory, amid the layers."""

    rank: int

    def __call__(self, worker: Worker) -> None:
        assert worker.loaded is not None
        group = worker.loaded.placement.mesh.group
        if worker._config.place.rank != self.rank or group is None:
            return
        sum_into, calls = group.sum_into, itertools.count()

        def short(*tensors: torch.Tensor) -> None:
            if next(calls) in (60, 99):
                raise torch.OutOfMemoryError("CUDA out of memory")
            sum_into(*tensors)

        group.sum_into = short  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("short_of_memory", [False, True])
def test_drafts_right_and_wrong_change_nothing(
    short_of_memory: bool, ranks: RankPool, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "sql", deltas_of(1, 4), rank=4, alpha=8)
    model = write_tiny_llama(tmp_path / "model", poisoned_token=POISON)
    config = ranks_of(model, tensor_parallel_size=2, lora=[f"sql={adapter}"], max_loras=1)
    # A recorded step calls the exchanges once.
    config = msgspec.structs.replace(config, enforce_eager=short_of_memory)
    rng = random.Random(2)
    requests = [
        replace(each, adapter=rng.choice(["sql", ""])) for each in constrained(random_requests(rng, 12), rng)
    ]
    plain = loop_on(ranks.load(config))
    plain.run(requests)
    drafting = ranks.load(msgspec.structs.replace(config, speculate="ngram"))
    loop = loop_on(drafting, max_drafts=4)
    drafting.ask(Prophesy(requests))
    if short_of_memory:
        drafting.ask(FailTwice(1))
    served = [each.again() for each in requests]
    loop.run(served)
    for each, expected in zip(served, requests, strict=True):
        assert each.finished is not None
        # One token that finds no room ends its request.
        if each.finished.error_code != "out_of_memory":
            assert each.heard() == expected.heard()
    stats = loop.engine.stats()
    assert stats.num_free_blocks == NUM_BLOCKS
    (leader, right, wrong), (follower, _, _) = drafting.ask(SeenByRank())
    assert leader == follower
    assert right > 0
    assert wrong > 0
    if short_of_memory:
        assert stats.num_preemptions > 0
    else:
        assert stats.num_steps < plain.engine.stats().num_steps


def test_every_drafter_drafts_on_the_first_rank(ranks: RankPool, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    draft = write_draft(tmp_path / "draft", noise=0.03)
    rng = random.Random(3)
    prompt = [rng.randrange(8, VOCAB) for _ in range(6)] * 3
    grammar = LLMatcher.grammar_from_regex('("customer_number": [0-9]{2}; ){2}')
    samplings = [
        SequenceSampling(seed=1, max_tokens=30, temperature=0.0, ignore_eos=True, logprobs=2),
        SequenceSampling(seed=2, max_tokens=30, ignore_eos=True, presence_penalty=0.5, logprobs=0),
        SequenceSampling(seed=3, max_tokens=50, grammar=grammar, logprobs=1),
    ]
    requests = [Served(prompt, sampling) for sampling in samplings]
    plain = loop_on(ranks.load(ranks_of(model, tensor_parallel_size=2)))
    plain.run(requests)
    methods = '{"method": ["grammar", "ngram", "draft_model"], "num_speculative_tokens": 4}'
    drafting = ranks.load(
        ranks_of(model, tensor_parallel_size=2, speculative_config=methods, speculative_model=str(draft))
    )
    loop = loop_on(drafting, max_drafts=4)
    drafting.ask(FreeDrafts())
    served = [each.again() for each in requests]
    loop.run(served)
    assert [each.heard() for each in served] == [each.heard() for each in requests]
    stats = loop.engine.stats()
    assert stats.num_steps < plain.engine.stats().num_steps
    assert {each.method for each in stats.drafts} == {"grammar", "ngram", "draft_model"}
    assert {each.method for each in stats.drafts if sum(each.counted)} >= {"grammar", "draft_model"}
    # The draft model and its cache are on rank 0 alone.
    assert drafting.loaded[0].block_bytes > drafting.loaded[1].block_bytes

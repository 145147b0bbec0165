"""The last stage of a pipeline drafts, all compute the drafts, and no tokens, logprobs or ends change."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import msgspec
from llguidance import LLMatcher

from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.worker.lora.adapters import deltas_of, write_adapter
from tests.worker.parallel.drafting import FreeDrafts, Prophesy, SeenByRank, loop_on, ranks_of
from tests.worker.parallel.ranks import RankPool
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.test_engine_core import NUM_BLOCKS, POISON, Served, random_requests
from tests.worker.runner.test_speculation import constrained


def test_drafts_right_and_wrong_change_nothing(ranks: RankPool, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "sql", deltas_of(1, 4), rank=4, alpha=8)
    model = write_tiny_llama(tmp_path / "model", poisoned_token=POISON)
    config = ranks_of(model, pipeline_parallel_size=2, lora=[f"sql={adapter}"], max_loras=1)
    rng = random.Random(2)
    requests = [
        replace(each, adapter=rng.choice(["sql", ""])) for each in constrained(random_requests(rng, 12), rng)
    ]
    plain = loop_on(ranks.load(config))
    plain.run(requests)
    drafting = ranks.load(msgspec.structs.replace(config, speculate="ngram"))
    loop = loop_on(drafting, max_drafts=4)
    drafting.ask(Prophesy(requests))
    served = [each.again() for each in requests]
    loop.run(served)
    assert [each.heard() for each in served] == [each.heard() for each in requests]
    stats = loop.engine.stats()
    assert stats.num_free_blocks == NUM_BLOCKS
    assert stats.num_steps < plain.engine.stats().num_steps
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    _, (_, right, wrong) = drafting.ask(SeenByRank())
    assert right > 0
    assert wrong > 0


def test_every_drafter_of_a_host_drafts_on_the_last_stage(ranks: RankPool, tmp_path: Path) -> None:
    plain = ranks_of(write_tiny_llama(tmp_path), pipeline_parallel_size=2, tensor_parallel_size=2)
    rng = random.Random(3)
    prompt = [rng.randrange(8, VOCAB) for _ in range(6)] * 3
    # A text of these goes round in loops.
    few = tuple(rng.randrange(8, VOCAB) for _ in range(2))
    grammar = LLMatcher.grammar_from_regex('("customer_number": [0-9]{2}; ){2}')
    samplings = [
        SequenceSampling(seed=1, max_tokens=30, temperature=0.0, ignore_eos=True, logprobs=2),
        SequenceSampling(seed=2, max_tokens=30, ignore_eos=True, allowed_token_ids=few, logprobs=0),
        SequenceSampling(seed=3, max_tokens=50, grammar=grammar, logprobs=1),
        SequenceSampling(seed=4, max_tokens=30, ignore_eos=True),
    ]
    requests = [Served(prompt, sampling) for sampling in samplings]
    without = loop_on(ranks.load(plain))
    without.run(requests)
    methods = ["grammar", "ngram", "suffix"]
    text = json.dumps({"method": methods, "num_speculative_tokens": 4})
    drafting = ranks.load(msgspec.structs.replace(plain, speculative_config=text))
    loop = loop_on(drafting, max_drafts=4)
    drafting.ask(FreeDrafts())
    served = [each.again() for each in requests]
    served[3].predicted = requests[3].tokens
    loop.run(served)
    assert [each.heard() for each in served] == [each.heard() for each in requests]
    stats = loop.engine.stats()
    assert stats.num_steps < without.engine.stats().num_steps
    counted = {each.method: sum(each.counted) for each in stats.drafts}
    assert all(counted.get(method, 0) > 0 for method in (*methods, "prediction")), counted
    assert sum(sum(each.drafted) for each in stats.drafts) == stats.draft_tokens

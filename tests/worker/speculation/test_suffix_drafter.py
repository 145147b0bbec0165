"""Answers repeat what was answered before: it is drafted, for their own tenants alone, and no bit changes."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import VOCAB
from tests.worker.runner.test_engine_core import Loaded, Loop, Served, bf16, fp32, random_requests
from tests.worker.speculation.free_drafts import make_free

__all__ = ["bf16", "fp32"]


@pytest.fixture(autouse=True)
def _free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a draft costs here would be a matter of time."""
    make_free(monkeypatch)


def drafting(loaded: Loaded) -> Loaded:
    """The same model in a worker that drafts suffixes."""
    config = msgspec.structs.replace(loaded[1], speculate="suffix")
    worker = Worker(config)
    return worker, config, worker.load()


def similar_requests() -> list[Served]:
    """Their outputs are random, of three tokens, so that drafts are often wrong."""
    few = SequenceSampling(max_tokens=30, ignore_eos=True, allowed_token_ids=(11, 12, 13), logprobs=1)
    return [Served([9, 10], msgspec.structs.replace(few, seed=seed)) for seed in range(3)]


@pytest.mark.parametrize("depth", [1, 2], ids=["one-step", "two-steps"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_drafts_of_earlier_answers_change_no_bit(
    dtype: str, depth: int, request: pytest.FixtureRequest
) -> None:
    loaded: Loaded = request.getfixturevalue(dtype)
    with_drafts = drafting(loaded)
    seen: Counter[str] = Counter()
    for seed in range(2):
        rng = random.Random(seed)
        requests = random_requests(rng, 10) + similar_requests()
        Loop(*loaded, depth).run(requests, rng)
        loop = Loop(*with_drafts, depth, max_drafts=rng.choice([1, 3, 8]))
        first, second = ([each.again() for each in requests] for _ in range(2))
        for turn in (first, second):
            loop.run(turn, rng)
            for without, with_ in zip(requests, turn, strict=True):
                assert with_.heard() == without.heard()
        stats = loop.engine.stats()
        seen.update(
            preempted=stats.num_preemptions,
            right=stats.accepted_draft_tokens,
            wrong=stats.draft_tokens - stats.accepted_draft_tokens,
        )
    assert all(seen[name] > 0 for name in ("preempted", "right", "wrong")), seen


def test_answers_are_drafted_for_their_own_tenant_and_salt_alone(fp32: Loaded) -> None:
    loop = Loop(*drafting(fp32), max_drafts=8)
    rng = random.Random(3)
    prompt = [rng.randrange(8, VOCAB) for _ in range(5)]
    sampling = SequenceSampling(seed=3, max_tokens=40, ignore_eos=True)
    num_steps, num_drafts = [], []
    for tenant, salt in (("a", ""), ("b", ""), ("a", "s"), ("", ""), ("a", ""), ("a", "s")):
        before = loop.engine.stats()
        loop.run([Served(prompt, sampling, tenant=tenant, cache_salt=salt)])
        after = loop.engine.stats()
        num_steps.append(after.num_steps - before.num_steps)
        num_drafts.append(after.draft_tokens - before.draft_tokens)
    # The text repeats nothing of itself, so whoever comes first has nothing to draft from.
    assert num_drafts[:4] == [0, 0, 0, 0]
    assert min(num_drafts[4:]) >= 25
    assert max(num_steps[4:]) < num_steps[0] / 2

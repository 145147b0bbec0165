"""Rows with every kind of parameters are sampled in one pass, each as if it were alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.ops.cpu import ops
from tests.worker.sampling.rows import EOS, VOCAB, Row, make_batch, sample, sampler_of

Fields = dict[str, Any]
KINDS: dict[str, Callable[[random.Random], Fields]] = {
    "greedy": lambda rng: {"temperature": 0.0},
    "sampled": lambda rng: {"temperature": rng.uniform(0.2, 2)},
    "filtered": lambda rng: {"top_k": rng.randint(1, 9), "top_p": rng.uniform(0.2, 1), "min_p": 0.02},
    "penalised": lambda rng: {"presence_penalty": 1.0, "frequency_penalty": -0.5, "repetition_penalty": 1.3},
    "biased": lambda rng: {"logit_bias": {rng.randrange(VOCAB): rng.uniform(-9, 9) for _ in range(5)}},
    "early": lambda rng: {"min_tokens": 6, "max_tokens": 9, "stop_token_ids": (7, 8)},
    "allowed": lambda rng: {"allowed_token_ids": (*rng.sample(range(VOCAB), rng.randint(1, 30)), 5)},
    "bad words": lambda rng: {
        "bad_word_token_ids": ((rng.randrange(VOCAB),), (4, rng.randrange(VOCAB)), (6, 4, 11))
    },
    "scored": lambda rng: {
        "logprobs": rng.randint(0, 3),
        "logprob_token_ids": tuple(rng.choices(range(VOCAB), k=rng.choice([0, 2, 9]))),
    },
}


def mixed_rows(rng: random.Random) -> list[Row]:
    """Each kind by itself, then mixtures of three kinds."""
    groups = [[kind] for kind in KINDS] + [rng.sample(list(KINDS), 3) for _ in range(14)]
    rng.shuffle(groups)
    rows = []
    for group in groups:
        fields: Fields = {"seed": rng.getrandbits(64)}
        for kind in group:
            fields |= KINDS[kind](rng)
        output = [rng.choice([4, 6, rng.randrange(VOCAB)]) for _ in range(rng.randint(0, 9))]
        rows.append(Row(SequenceSampling(**fields), prompt=[1, EOS, 9], output=output))
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_a_mixed_batch_gives_each_row_what_it_gets_alone(seed: int) -> None:
    rows = mixed_rows(random.Random(seed))
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    together = sample(rows, logits)
    assert together.errors == []
    scored = {entry.key: entry for entry in together.logprobs}
    for i, row in enumerate(rows):
        alone = sample([row], logits[i : i + 1])
        assert alone.token_ids[0] == together.token_ids[i]
        assert len(alone.logprobs) == (i in scored)
        for entry in alone.logprobs:
            other = scored[i]
            assert (entry.rank, entry.token_ids, entry.logprobs) == (
                other.rank,
                other.token_ids,
                other.logprobs,
            )


def test_a_mixed_batch_is_drawn_and_scored_in_one_call_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    kernels = ops.sampling
    for name in ("sample", "edit_logits", "apply_penalties", "top_logprobs", "token_logprobs"):
        real = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *a, name=name, real=real: (calls.append(name), real(*a)))
    rows = mixed_rows(random.Random(3))
    sample(rows, torch.randn(len(rows), VOCAB))
    assert sorted(calls) == ["apply_penalties", "edit_logits", "sample", "token_logprobs", "top_logprobs"]


@pytest.mark.parametrize(("has_scored", "num_waits"), [(False, 1), (True, 2)])
def test_the_device_is_waited_for_once_for_tokens_and_once_for_logprobs(
    has_scored: bool, num_waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    fetch = CpuDevice.fetch
    monkeypatch.setattr(CpuDevice, "fetch", lambda self, x: (waits.append(x.numel()), fetch(self, x))[1])
    rows = [row for row in mixed_rows(random.Random(3)) if has_scored or row.sampling.logprobs is None]
    assert any(row.sampling.logprob_token_ids for row in rows) == has_scored
    sample(rows, torch.randn(len(rows), VOCAB))
    assert waits[0] == len(rows)
    assert len(waits) == num_waits


def test_rows_without_rare_features_cost_no_look_into_the_dicts(monkeypatch: pytest.MonkeyPatch) -> None:
    common: Fields = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2}
    batch = make_batch([Row(SequenceSampling(seed=i, presence_penalty=0.5, **common)) for i in range(8)])
    for name in ("logit_bias", "end_token_ids", "allowed_token_ids", "bad_words", "logprob_token_ids"):
        monkeypatch.setattr(batch.sampling, name, None)
    sampled = sampler_of(batch).sample(torch.randn(8, VOCAB), np.arange(8, dtype=np.int32))
    assert len(sampled.token_ids) == 8

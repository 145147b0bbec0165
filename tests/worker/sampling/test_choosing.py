"""Temperature, top_k, top_p, min_p and seed decide what is drawn."""

from __future__ import annotations

import numpy as np
import torch

from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.worker.sampling.rows import VOCAB, Row, draws, make_batch, peaked, sampler_of, tokens

NUM_DRAWS = 4000


def random_logits(seed: int, rows: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((VOCAB,) if rows is None else (rows, VOCAB), generator=generator) * 2


def frequencies(token_ids: np.ndarray) -> np.ndarray:
    return np.bincount(token_ids, minlength=VOCAB) / len(token_ids)


def test_temperature_zero_takes_the_largest_logit() -> None:
    logits = random_logits(1, rows=5)
    rows = [Row(SequenceSampling(temperature=0.0, seed=seed)) for seed in range(5)]
    assert tokens(rows, logits) == logits.argmax(-1).tolist()


def test_draws_follow_the_softmax() -> None:
    logits = random_logits(2)
    found = frequencies(draws(SequenceSampling(), logits, NUM_DRAWS))
    wanted = logits.softmax(-1).numpy()
    spread = np.sqrt(wanted * (1 - wanted) / NUM_DRAWS)
    assert (np.abs(found - wanted) < 5 * spread + 1e-3).all()


def test_temperature_sharpens_and_flattens() -> None:
    logits = random_logits(3)
    for temperature in (0.3, 2.0):
        found = frequencies(draws(SequenceSampling(temperature=temperature), logits, NUM_DRAWS))
        wanted = (logits / temperature).softmax(-1).numpy()
        assert np.abs(found - wanted).sum() < 0.1
        assert np.abs(found - logits.softmax(-1).numpy()).sum() > 0.2


def test_top_k_keeps_the_k_largest() -> None:
    drawn = draws(SequenceSampling(top_k=3, temperature=2.0), peaked(9, 8, 7, 6, 5), NUM_DRAWS)
    assert set(drawn.tolist()) == {9, 8, 7}


def test_top_k_of_minus_one_keeps_all() -> None:
    drawn = draws(SequenceSampling(top_k=-1, temperature=2.0), torch.zeros(VOCAB), NUM_DRAWS)
    assert set(drawn.tolist()) == set(range(VOCAB))


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    logits = torch.full((VOCAB,), -torch.inf)
    logits[:4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draws(SequenceSampling(top_p=0.7), logits, NUM_DRAWS).tolist()) == {0, 1}
    assert set(draws(SequenceSampling(top_p=0.9), logits, NUM_DRAWS).tolist()) == {0, 1, 2}


def test_a_top_p_below_float32_still_draws_the_likeliest() -> None:
    assert set(draws(SequenceSampling(top_p=1e-300), peaked(9, 8), 50).tolist()) == {9}


def test_min_p_drops_tokens_below_its_share_of_the_largest() -> None:
    logits = torch.full((VOCAB,), -torch.inf)
    logits[:3] = torch.tensor([0.6, 0.3, 0.1]).log()
    assert set(draws(SequenceSampling(min_p=0.4), logits, NUM_DRAWS).tolist()) == {0, 1}


def test_the_same_seed_draws_the_same_and_another_seed_differs() -> None:
    logits = torch.zeros(40, VOCAB)
    rows = [Row(SequenceSampling(seed=7 if i % 2 else i * 1000)) for i in range(40)]
    drawn = tokens(rows, logits)
    assert len(set(drawn[1::2])) == 1
    assert len(set(drawn[0::2])) > 8


def test_all_64_bits_of_a_seed_count() -> None:
    rows = [Row(SequenceSampling(seed=2**64 - 1 - (i << 40))) for i in range(40)]
    assert len(set(tokens(rows, torch.zeros(40, VOCAB)))) > 8


def test_a_draw_depends_on_the_position_and_not_on_the_split_of_prompt_and_output() -> None:
    sampling = SequenceSampling(seed=5)
    logits = torch.zeros(30, VOCAB)
    resumed = [Row(sampling, prompt=[1], output=[2] * i) for i in range(30)]
    whole = [Row(sampling, prompt=[1] + [9] * i) for i in range(30)]
    drawn = tokens(resumed, logits)
    assert drawn == tokens(whole, logits)
    assert len(set(drawn)) > 8


def test_a_row_draws_the_same_in_any_batch_and_at_any_place() -> None:
    logits = random_logits(4, rows=12)
    rows = [
        Row(SequenceSampling(seed=i, top_k=20, top_p=0.95, temperature=1.3), output=[5] * i)
        for i in range(12)
    ]
    together = tokens(rows, logits)
    assert together == [tokens([rows[i]], logits[i : i + 1])[0] for i in range(12)]
    batch = make_batch(rows)
    order = np.array([7, 0, 11, 3], np.int32)
    sampled = sampler_of(batch).sample(logits[torch.from_numpy(order).long()], order)
    assert sampled.token_ids.tolist() == [together[i] for i in order]

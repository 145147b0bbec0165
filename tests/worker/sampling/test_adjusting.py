"""logit_bias, min_tokens and the penalties change a row's logits, and no other row's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.sampling_state import Feature
from tests.worker.sampling.rows import EOS, Row, make_batch, peaked, sample, sampler_of, tokens

GREEDY = {"temperature": 0.0, "seed": 0}


def greedy(**fields: object) -> SequenceSampling:
    return SequenceSampling(**GREEDY, **fields)  # type: ignore[arg-type]


def choose(row: Row, logits: torch.Tensor) -> int:
    """What the row picks between two rows that do nothing special and have to stay undisturbed."""
    plain = Row(greedy())
    first, chosen, last = tokens([plain, row, plain], logits.repeat(3, 1))
    assert first == last == int(logits.argmax())
    return chosen


def test_logit_bias_raises_and_lowers_tokens() -> None:
    assert choose(Row(greedy(logit_bias={20: 6.0})), peaked(9, 8)) == 20
    assert choose(Row(greedy(logit_bias={9: -100.0})), peaked(9, 8)) == 8


def test_min_tokens_masks_eos_until_enough_is_generated() -> None:
    logits = peaked(EOS, 8)
    params = greedy(min_tokens=2, max_tokens=9)
    assert choose(Row(params, output=[]), logits) == 8
    assert choose(Row(params, output=[8]), logits) == 8
    assert choose(Row(params, output=[8, 8]), logits) == EOS


def test_min_tokens_masks_the_stop_token_ids() -> None:
    params = greedy(min_tokens=1, max_tokens=9, stop_token_ids=(9, 8))
    assert choose(Row(params), peaked(9, 8, 7)) == 7


def test_min_tokens_leaves_eos_alone_when_it_ends_nothing() -> None:
    assert choose(Row(greedy(min_tokens=1, max_tokens=9, ignore_eos=True)), peaked(EOS, 8)) == EOS


def test_min_tokens_are_counted_anew_for_every_token() -> None:
    batch = make_batch([Row(greedy(min_tokens=2, max_tokens=9))])
    sampler = sampler_of(batch)
    drawn = []
    for _ in range(4):
        sampled = sampler.sample(peaked(EOS, 8).unsqueeze(0), np.zeros(1, np.int32))
        batch.append(sampled.rows, sampled.token_ids)
        drawn += sampled.token_ids.tolist()
    assert drawn == [8, 8, EOS, EOS]
    assert not batch.sampling.features[0] & Feature.MIN_TOKENS


def test_presence_penalty_is_subtracted_once_from_generated_tokens_only() -> None:
    params = greedy(presence_penalty=1.5)
    assert choose(Row(params, prompt=[9, 9]), peaked(9, 8)) == 9
    assert choose(Row(params, output=[9]), peaked(9, 8)) == 8
    assert choose(Row(params, output=[9, 9, 9, 8]), peaked(9, 8)) == 9


def test_frequency_penalty_counts_occurrences() -> None:
    params = greedy(frequency_penalty=0.6)
    assert choose(Row(params, prompt=[9] * 5, output=[9]), peaked(9, 8)) == 9
    assert choose(Row(params, output=[9, 9]), peaked(9, 8)) == 8


def test_negative_penalties_attract() -> None:
    assert choose(Row(greedy(presence_penalty=-1.5), output=[8]), peaked(9, 8)) == 8


def test_repetition_penalty_covers_prompt_and_output() -> None:
    params = greedy(repetition_penalty=1.5)
    assert choose(Row(params, prompt=[9]), peaked(9, 8)) == 8
    assert choose(Row(params, output=[9]), peaked(9, 8)) == 8


def test_repetition_penalty_multiplies_negative_logits() -> None:
    logits = torch.full((64,), -9.0)
    logits[9], logits[8] = -2.0, -3.0
    assert choose(Row(greedy(repetition_penalty=2.0), prompt=[9]), logits) == 8


def test_a_repetition_penalty_below_float32_does_not_end_the_step() -> None:
    assert choose(Row(greedy(repetition_penalty=1e-300), prompt=[8]), peaked(9, 8)) == 8


def test_bias_and_penalties_add_up() -> None:
    params = greedy(logit_bias={8: 2.0}, presence_penalty=1.5)
    assert choose(Row(params, output=[8]), peaked(9, 8)) == 9
    assert choose(Row(params, output=[9]), peaked(9, 8)) == 8


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_no_number_fails_alone(bad: float) -> None:
    logits = peaked(9, 8).repeat(3, 1)
    logits[1, 40] = bad
    rows = [Row(greedy(logprobs=1)), Row(greedy(logprobs=1)), Row(greedy())]
    sampled = sample(rows, logits)
    assert sampled.rows.tolist() == [0, 2]
    assert sampled.token_ids.tolist() == [9, 9]
    assert [(error.row, error.code) for error in sampled.errors] == [(1, "numerical_error")]
    assert [entry.key for entry in sampled.logprobs] == [0]

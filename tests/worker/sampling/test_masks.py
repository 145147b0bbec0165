"""allowed_token_ids and bad words keep tokens from being drawn, and no other row's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.sampling_state import SamplingState
from splitserve.worker.ops.cpu import ops
from splitserve.worker.sampling import allowed_masks
from tests.worker.sampling.rows import EOS, VOCAB, Row, draws, make_batch, peaked, sample, sampler_of, tokens
from tests.worker.sampling.test_adjusting import choose, greedy


def test_only_allowed_tokens_are_drawn() -> None:
    logits = peaked(9, 8, 7, 6)
    assert choose(Row(greedy(allowed_token_ids=(6, 7, 7))), logits) == 7
    drawn = draws(SequenceSampling(allowed_token_ids=(40, 2, 6), temperature=2.0), logits, 500)
    assert set(drawn.tolist()) == {40, 2, 6}


def test_eos_is_drawn_only_if_it_is_allowed() -> None:
    logits = peaked(EOS, 8)
    assert choose(Row(greedy(allowed_token_ids=(8, 7))), logits) == 8
    assert choose(Row(greedy(allowed_token_ids=(8, EOS))), logits) == EOS


def test_filters_work_on_what_is_allowed() -> None:
    drawn = draws(SequenceSampling(allowed_token_ids=(5, 6, 7), top_k=2), peaked(9, 7, 6, 5), 300)
    assert set(drawn.tolist()) == {6, 7}


def test_bias_does_not_bring_back_what_is_not_allowed() -> None:
    params = greedy(allowed_token_ids=(6,), logit_bias={9: 100.0}, frequency_penalty=-2.0)
    assert choose(Row(params, output=[9, 9]), peaked(9, 8)) == 6


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([], 9),
        ([7], 9),
        ([5], 8),
        ([4, 5], 7),
        ([4, 5, 1], 9),
        ([5, 4], 9),
        ([1, 2, 4, 5], 7),
    ],
)
def test_a_sequence_forbids_its_last_token_where_the_output_ends_with_the_rest(
    output: list[int], expected: int
) -> None:
    params = greedy(bad_word_token_ids=((5, 9), (4, 5, 8), (6,)))
    assert choose(Row(params, output=output), peaked(6, 9, 8, 7)) == expected


def test_the_prompt_does_not_count_as_the_start_of_a_bad_word() -> None:
    params = greedy(bad_word_token_ids=((4, 5, 9),))
    assert choose(Row(params, prompt=[4, 5]), peaked(9, 8)) == 9
    assert choose(Row(params, prompt=[4], output=[5]), peaked(9, 8)) == 9
    assert choose(Row(params, prompt=[1], output=[4, 5]), peaked(9, 8)) == 8


def test_bad_words_that_cannot_end_now_cost_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops.sampling, "edit_logits", None)
    rows = [Row(greedy(bad_word_token_ids=((5, 9),))), Row(greedy(min_tokens=1, max_tokens=3), output=[8])]
    assert tokens(rows, peaked(9, 8).repeat(2, 1)) == [9, 9]


def test_bad_words_are_compared_with_every_new_token() -> None:
    batch = make_batch([Row(greedy(bad_word_token_ids=((9, 9, 9),)))])
    sampler = sampler_of(batch)
    drawn = []
    for _ in range(6):
        sampled = sampler.sample(peaked(9, 8).unsqueeze(0), np.zeros(1, np.int32))
        batch.append(sampled.rows, sampled.token_ids)
        drawn += sampled.token_ids.tolist()
    assert drawn == [9, 9, 8, 9, 9, 8]


def test_a_row_taken_anew_has_its_own_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[int]] = []
    make = allowed_masks._mask_of
    monkeypatch.setattr(
        allowed_masks, "_mask_of", lambda ids, size: (made.append(ids.tolist()), make(ids, size))[1]
    )
    batch = make_batch([Row(greedy(allowed_token_ids=(8, 7)))])
    sampler, drawn = sampler_of(batch), []
    for sampling in (None, None, greedy(allowed_token_ids=(6,)), greedy(), None):
        if sampling is not None:
            new_row = NewRow(0, pack_int32([1, 2]), 2, 0, pack_int32([0]), sampling)
            batch.apply(SchedulerOutput(1, b"", b"", [new_row], freed_rows=pack_int32([0])))
        drawn += sampler.sample(peaked(9, 8).unsqueeze(0), np.zeros(1, np.int32)).token_ids.tolist()
    assert drawn == [8, 8, 6, 9, 9]
    assert made == [[8, 7], [6]]


CONTRADICTIONS = [
    greedy(allowed_token_ids=(5,), bad_word_token_ids=((5,),), logprobs=1),
    greedy(allowed_token_ids=(EOS,), min_tokens=1, max_tokens=3),
    SequenceSampling(seed=1, bad_word_token_ids=tuple((i,) for i in range(VOCAB)), logprobs=0),
]


@pytest.mark.parametrize("params", CONTRADICTIONS)
def test_a_row_with_nothing_left_to_draw_fails_alone(params: SequenceSampling) -> None:
    rows = [Row(greedy(logprobs=0)), Row(params), Row(greedy(allowed_token_ids=(8,)))]
    sampled = sample(rows, peaked(9, 8).repeat(3, 1))
    assert sampled.rows.tolist() == [0, 2]
    assert sampled.token_ids.tolist() == [9, 8]
    assert [(error.row, error.code, error.status) for error in sampled.errors] == [(1, "no_token_left", 400)]
    assert [entry.key for entry in sampled.logprobs] == [0]


def test_a_row_that_forbids_nothing_is_not_told_that_it_did() -> None:
    sampled = sample([Row(greedy()), Row(greedy(logprobs=1))], torch.full((2, VOCAB), -torch.inf))
    assert [(error.row, error.code) for error in sampled.errors] == [(i, "numerical_error") for i in range(2)]


def test_a_nan_fails_a_row_that_does_not_allow_its_token() -> None:
    logits = peaked(9, 8).repeat(2, 1)
    logits[1, 40] = torch.nan
    sampled = sample([Row(greedy(allowed_token_ids=(9,)))] * 2, logits)
    assert sampled.rows.tolist() == [0]
    assert [(error.row, error.code) for error in sampled.errors] == [(1, "numerical_error")]


@pytest.mark.parametrize("field", ["allowed_token_ids", "logprob_token_ids", "bad_word_token_ids"])
@pytest.mark.parametrize("token_id", [-1, VOCAB])
def test_ids_outside_the_vocabulary_are_refused_before_a_kernel_sees_them(field: str, token_id: int) -> None:
    ids = ((1, token_id),) if field == "bad_word_token_ids" else (1, token_id)
    params = SequenceSampling(logprobs=0, **{field: ids})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=field):
        SamplingState(np.zeros(1, np.uint16), VOCAB, []).add(0, params, 1, 1)


@pytest.mark.parametrize("fields", [{"allowed_token_ids": ()}, {"bad_word_token_ids": ((1,), ())}])
def test_empty_lists_are_refused(fields: dict) -> None:
    with pytest.raises(InvalidRequestError):
        SamplingState(np.zeros(1, np.uint16), VOCAB, []).add(0, SequenceSampling(**fields), 1, 1)

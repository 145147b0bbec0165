"""Logprobs of sampled tokens are those of the model's own logits."""

from __future__ import annotations

import numpy as np
import torch

from splitserve.engine_core.ipc.codec import unpack_float32, unpack_int32
from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.worker.sampling.rows import VOCAB, Row, sample


def check(entry: TokenLogprobs, logits: torch.Tensor, token_id: int, num_top: int) -> None:
    reference = logits.double().log_softmax(-1)
    ids, values = unpack_int32(entry.token_ids), unpack_float32(entry.logprobs)
    top = reference.topk(num_top)
    assert ids.tolist() == [token_id, *top.indices.tolist()]
    np.testing.assert_allclose(values[0], reference[token_id], rtol=1e-5)
    np.testing.assert_allclose(values[1:], top.values, rtol=1e-5)
    assert entry.rank == 1 + int((logits > logits[token_id]).sum())


def test_each_row_gets_its_own_number_of_alternatives() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(1))
    wanted = [5, None, 0, 20]
    rows = [Row(SequenceSampling(seed=i, logprobs=k), output=[4] * i) for i, k in enumerate(wanted)]
    sampled = sample(rows, logits)
    assert [entry.key for entry in sampled.logprobs] == [0, 2, 3]
    assert [entry.token_index for entry in sampled.logprobs] == [0, 2, 3]
    for entry in sampled.logprobs:
        check(entry, logits[entry.key], int(sampled.token_ids[entry.key]), wanted[entry.key] or 0)


def test_bias_temperature_and_penalties_leave_the_logprobs_alone() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(2))
    adjusted = SequenceSampling(
        seed=1, temperature=0.2, top_k=2, logit_bias={11: 100.0}, repetition_penalty=1.5, logprobs=3
    )
    sampled = sample([Row(SequenceSampling(seed=1)), Row(adjusted)], logits)
    assert int(sampled.token_ids[1]) == 11
    check(sampled.logprobs[0], logits[1], 11, 3)


def test_alternatives_are_cut_to_a_small_vocabulary() -> None:
    sampled = sample([Row(SequenceSampling(seed=1, logprobs=20))], torch.arange(8.0).unsqueeze(0))
    check(sampled.logprobs[0], torch.arange(8.0), int(sampled.token_ids[0]), 8)


def test_logprobs_do_not_depend_on_the_neighbours() -> None:
    logits = torch.randn(9, VOCAB, generator=torch.Generator().manual_seed(3))
    rows = [Row(SequenceSampling(seed=i, logprobs=i % 4)) for i in range(9)]
    together = sample(rows, logits).logprobs
    for i in range(9):
        alone = sample([rows[i]], logits[i : i + 1]).logprobs[0]
        assert (alone.token_ids, alone.logprobs, alone.rank) == (
            together[i].token_ids,
            together[i].logprobs,
            together[i].rank,
        )


def test_ids_asked_for_come_behind_the_alternatives_in_their_order() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(4))
    asked = (40, 2, 2, 63)
    rows = [
        Row(SequenceSampling(seed=1, logprobs=0, logprob_token_ids=asked)),
        Row(SequenceSampling(seed=2, logprobs=3)),
        Row(SequenceSampling(seed=3, logprobs=2, logprob_token_ids=(7,), allowed_token_ids=(5,))),
    ]
    first, second, third = sample(rows, logits).logprobs
    reference = logits.double().log_softmax(-1)
    assert unpack_int32(first.token_ids).tolist()[1:] == list(asked)
    np.testing.assert_allclose(unpack_float32(first.logprobs)[1:], reference[0, list(asked)], rtol=1e-5)
    assert len(unpack_int32(second.token_ids)) == 4
    assert unpack_int32(third.token_ids).tolist() == [5, *logits[2].topk(2).indices.tolist(), 7]
    np.testing.assert_allclose(unpack_float32(third.logprobs)[3], reference[2, 7], rtol=1e-5)

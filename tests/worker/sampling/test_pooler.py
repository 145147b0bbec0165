"""Which hidden states become vectors, of which rows, and what is no vector."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splitserve.engine_core.checkpoint.pooling import PoolingMode
from splitserve.engine_core.ipc.codec import pack_int32, unpack_float32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.sampling.pooler import Pooler
from splitserve.worker.sampling.reduction import REDUCTIONS
from tests.worker.sampling.rows import Row, make_batch

NOTHING = SequenceSampling(seed=0, max_tokens=0)
NUM_ROWS = 4


def test_each_row_that_is_done_gets_the_state_of_its_last_token() -> None:
    batch = make_batch([Row(NOTHING, range(1, 4)), Row(NOTHING, range(1, 9)), Row(NOTHING, [5])])
    # The second row computes the first half of its prompt.
    inputs = batch.prepare(SchedulerOutput(1, pack_int32([0, 1, 2]), pack_int32([3, 4, 1])))
    hidden = torch.arange(8, dtype=torch.bfloat16)[inputs.outputs][:, None].repeat(1, 4)
    sampled, pooled = Pooler(CpuDevice()).pool(hidden, inputs)
    assert sampled.rows.tolist() == [entry.key for entry in pooled] == [0, 2]
    assert sampled.token_ids.tolist() == [0, 0]
    assert [unpack_float32(entry.values).tolist() for entry in pooled] == [[2.0] * 4, [7.0] * 4]


WHOLE = [Row(NOTHING, range(1, 4)), Row(NOTHING, [5]), Row(NOTHING, range(1, 5))]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("cls", [0, 3, 4]),
        ("lasttoken", [2, 3, 7]),
        ("mean", [1, 3, 5.5]),
        ("max", [2, 3, 7]),
        ("weightedmean", [8 / 6, 3, 60 / 10]),
        ("mean_sqrt_len", [3 / 3**0.5, 3, 22 / 2]),
    ],
)
def test_prompts_that_are_computed_whole_have_other_vectors(mode: PoolingMode, expected: list[float]) -> None:
    pooler, batch = Pooler(CpuDevice(), mode, num_rows=NUM_ROWS), make_batch(WHOLE)
    inputs = pooler.with_outputs(
        batch.prepare(SchedulerOutput(1, pack_int32([0, 1, 2]), pack_int32([3, 1, 4])))
    )
    hidden = torch.arange(8, dtype=torch.bfloat16)[:, None].repeat(1, 4)
    if inputs.outputs is not None:
        hidden = hidden[inputs.outputs]
    sampled, pooled = pooler.pool(hidden, inputs)
    assert sampled.rows.tolist() == [0, 1, 2]
    found = [unpack_float32(entry.values).tolist() for entry in pooled]
    np.testing.assert_allclose(found, [[x] * 4 for x in expected], rtol=1e-6)


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_chunks_change_no_bit_of_what_all_tokens_make(mode: PoolingMode) -> None:
    states = torch.from_numpy(np.random.default_rng(0).standard_normal((37, 5)).astype(np.float32))
    pooler, prompts = Pooler(CpuDevice(), mode, num_rows=NUM_ROWS), [Row(NOTHING, range(1, 38))] * 2
    found: dict[int, bytes] = {}
    # The second row is given up in the middle, which leaves nothing behind, and then computed in chunks.
    for batch, row, counts in (
        (make_batch(prompts), 0, [37]),
        (make_batch(prompts), 1, [5, 9]),
        (make_batch(prompts), 1, [1, 19, 16, 1]),
    ):
        start = 0
        for count in counts:
            inputs = batch.prepare(SchedulerOutput(1, pack_int32([row]), pack_int32([count])))
            _, pooled = pooler.pool(states[start : start + count], inputs)
            found |= {entry.key: entry.values for entry in pooled}
            batch.append(np.zeros(0, np.int32), np.zeros(0, np.int32))
            start += count
    assert found[0] == found[1]


def test_a_row_of_a_decoder_is_reduced_over_its_chunks() -> None:
    batch = make_batch([Row(NOTHING, range(1, 4)), Row(NOTHING, range(1, 6))])
    pooler, found = Pooler(CpuDevice(), "mean", num_rows=NUM_ROWS), []
    # The first step ends one row, the second the other.
    for rows, counts, states in (([0, 1], [3, 2], [1, 2, 6, 10, 20]), ([1], [3], [30, 40, 50])):
        step = SchedulerOutput(1, pack_int32(rows), pack_int32(counts))
        inputs = pooler.with_outputs(batch.prepare(step))
        assert inputs.outputs is None
        _, pooled = pooler.pool(torch.tensor(states, dtype=torch.float32)[:, None], inputs)
        found += [(entry.key, unpack_float32(entry.values).tolist()) for entry in pooled]
        batch.append(np.zeros(0, np.int32), np.zeros(0, np.int32))
    assert found == [(0, [3.0]), (1, [30.0])]


def test_rows_may_want_the_vector_of_each_token() -> None:
    batch = make_batch(WHOLE)
    wants = np.array([False, False, True, False])
    pooler = Pooler(CpuDevice(), "cls", pools_tokens=wants)
    inputs = pooler.with_outputs(
        batch.prepare(SchedulerOutput(1, pack_int32([0, 1, 2]), pack_int32([3, 1, 4])))
    )
    hidden = torch.arange(8, dtype=torch.bfloat16)[:, None].repeat(1, 2)
    _, pooled = pooler.pool(hidden, inputs)
    vectors = [unpack_float32(entry.values).tolist() for entry in pooled]
    assert vectors == [[0, 0], [3, 3], [4, 4, 5, 5, 6, 6, 7, 7]]


@pytest.mark.parametrize("mode", ["cls", "lasttoken", *REDUCTIONS])
def test_a_prompt_of_one_token_has_its_state(mode: PoolingMode) -> None:
    pooler, batch = (
        Pooler(CpuDevice(), mode, num_rows=NUM_ROWS),
        make_batch([Row(NOTHING, [5]), Row(NOTHING, [6])]),
    )
    inputs = pooler.with_outputs(batch.prepare(SchedulerOutput(1, pack_int32([0, 1]), pack_int32([1, 1]))))
    _, pooled = pooler.pool(torch.tensor([[1.0], [2.0]]), inputs)
    assert [unpack_float32(entry.values).tolist() for entry in pooled] == [[1.0], [2.0]]


def test_vectors_are_copies() -> None:
    batch = make_batch([Row(NOTHING, [5])])
    inputs = batch.prepare(SchedulerOutput(1, pack_int32([0]), pack_int32([1])))
    hidden = torch.ones(1, 4)
    _, pooled = Pooler(CpuDevice()).pool(hidden, inputs)
    hidden.zero_()
    assert unpack_float32(pooled[0].values).tolist() == [1.0] * 4


def test_what_is_no_number_is_an_error_of_its_row() -> None:
    batch = make_batch([Row(NOTHING, [5]), Row(NOTHING, [6]), Row(NOTHING, [7])])
    inputs = batch.prepare(SchedulerOutput(1, pack_int32([0, 1, 2]), pack_int32([1, 1, 1])))
    hidden = torch.ones(3, 4)
    hidden[0, 1], hidden[2, 3] = np.nan, np.inf
    sampled, pooled = Pooler(CpuDevice()).pool(hidden, inputs)
    assert sampled.rows.tolist() == [entry.key for entry in pooled] == [1]
    assert [(error.row, error.code) for error in sampled.errors] == [
        (0, "numerical_error"),
        (2, "numerical_error"),
    ]


def test_a_step_without_a_finished_prompt_has_no_vector() -> None:
    batch = make_batch([Row(NOTHING, range(1, 9))])
    inputs = batch.prepare(SchedulerOutput(1, pack_int32([0]), pack_int32([4])))
    sampled, pooled = Pooler(CpuDevice()).pool(torch.ones(1, 4), inputs)
    assert (len(sampled.rows), pooled) == (0, [])

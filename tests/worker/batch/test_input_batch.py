"""The batch's bookkeeping: what a step's inputs look like after rows come, grow and go."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, RowError, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.input_batch import BatchLimits, InputBatch
from splitserve.worker.batch.step_inputs import StepInputs

LIMITS = BatchLimits(
    max_num_seqs=4, max_num_batched_tokens=64, max_model_len=32, block_size=4, num_blocks=40, vocab_size=50
)


def new(row: int, tokens: list[int], blocks: list[int], computed: int = 0, **sampling: Any) -> NewRow:
    params = SequenceSampling(seed=0, **sampling)
    return NewRow(row, pack_int32(tokens), len(tokens), computed, pack_int32(blocks), params)


def play(batch: InputBatch, counts: dict[int, int], *rows: NewRow, **fields: list[int]) -> StepInputs:
    columns: dict[str, Any] = {name: pack_int32(values) for name, values in fields.items()}
    step = SchedulerOutput(
        1, pack_int32(list(counts)), pack_int32(list(counts.values())), list(rows), **columns
    )
    batch.apply(step)
    return batch.prepare(step)


def run(batch: InputBatch, counts: dict[int, int], *rows: NewRow, **fields: list[int]) -> StepInputs:
    inputs = play(batch, counts, *rows, **fields)
    assert batch.failures == {}
    return inputs


def test_a_mixed_step_lays_out_chunk_and_decode_rows_in_the_order_given() -> None:
    batch = InputBatch(LIMITS, [])
    inputs = run(
        batch,
        {2: 1, 0: 3},
        new(0, [10, 11, 12, 13, 14], [7, 9], computed=1),
        new(2, [20, 21, 22, 23, 24], [3, 30], computed=4),
    )
    assert inputs.token_ids.tolist() == [24, 11, 12, 13]
    assert inputs.meta.positions.tolist() == [4, 1, 2, 3]
    assert inputs.meta.slot_mapping.tolist() == [30 * 4, 7 * 4 + 1, 7 * 4 + 2, 7 * 4 + 3]
    assert inputs.meta.cu_seqlens_q.tolist() == [0, 1, 4]
    assert inputs.meta.seq_lens.tolist() == [5, 4]
    assert inputs.meta.block_tables.tolist() == [[3, 30], [7, 9]]
    assert inputs.sampling.tolist() == [0]
    assert inputs.meta.token_types is None
    assert all(tensor.dtype == torch.int32 and tensor.is_contiguous() for tensor in inputs.tensors)


def whole_batch() -> InputBatch:
    """A batch of a model without a KV cache, with prompts of two texts and of one."""
    batch = InputBatch(BatchLimits(3, 16, 8, 4, 0, 50), [])
    rows = [
        NewRow(0, pack_int32([5, 6, 7, 8]), 4, 0, b"", SequenceSampling(seed=0), second_at=3),
        NewRow(2, pack_int32([9, 10]), 2, 0, b"", SequenceSampling(seed=0)),
    ]
    batch.apply(SchedulerOutput(1, b"", b"", new_rows=rows))
    return batch


def test_without_a_cache_rows_have_token_types_and_no_slots() -> None:
    inputs = whole_batch().prepare(SchedulerOutput(1, pack_int32([2, 0]), pack_int32([2, 4])))
    assert inputs.token_ids.tolist() == [9, 10, 5, 6, 7, 8]
    assert inputs.meta.positions.tolist() == [0, 1, 0, 1, 2, 3]
    assert inputs.meta.token_types is not None
    assert inputs.meta.token_types.tolist() == [0, 0, 0, 0, 0, 1]
    assert inputs.meta.slot_mapping.tolist() == []
    assert inputs.meta.block_tables.shape == (2, 0)
    assert inputs.sampling.tolist() == [0, 1]


def test_rows_without_pairs_have_no_token_types() -> None:
    inputs = whole_batch().prepare(SchedulerOutput(1, pack_int32([2]), pack_int32([2])))
    assert inputs.token_ids.tolist() == [9, 10]
    assert inputs.meta.token_types is None


@pytest.mark.parametrize("num_tokens", [1, 3, 5])
def test_without_a_cache_rows_are_computed_whole(num_tokens: int) -> None:
    with pytest.raises(WorkerError, match="row 0 would compute up to token"):
        whole_batch().prepare(SchedulerOutput(1, pack_int32([0]), pack_int32([num_tokens])))


def test_a_sampled_token_is_the_next_steps_input() -> None:
    batch = InputBatch(LIMITS, [])
    run(batch, {1: 2, 3: 2}, new(1, [5, 6], [0]), new(3, [7, 8], [1]))
    batch.append(np.array([1, 3], np.int32), np.array([40, 41], np.int32))
    inputs = run(batch, {3: 1, 1: 1})
    assert inputs.token_ids.tolist() == [41, 40]
    assert inputs.meta.positions.tolist() == [2, 2]
    assert inputs.sampling.tolist() == [0, 1]


def test_blocks_are_appended_in_column_order_also_twice_to_one_row() -> None:
    batch = InputBatch(LIMITS, [])
    run(batch, {}, new(0, [1] * 12, [5]), new(1, [2] * 6, [6]))
    inputs = run(batch, {0: 12, 1: 6}, block_rows=[0, 1, 0], block_ids=[11, 12, 13])
    assert inputs.meta.block_tables[0].tolist() == [5, 11, 13]
    assert inputs.meta.block_tables[1, :2].tolist() == [6, 12]


def test_a_row_freed_and_taken_in_one_step_starts_afresh() -> None:
    batch = InputBatch(LIMITS, eos_token_ids=[2])
    masks: dict[str, Any] = {"min_tokens": 2, "allowed_token_ids": (4,), "bad_word_token_ids": ((4, 4),)}
    scores: dict[str, Any] = {"logprobs": 1, "logprob_token_ids": (5,)}
    old = new(0, [1] * 9, [5, 6, 7], logit_bias={3: 1.0}, presence_penalty=1.0, **masks, **scores)
    run(batch, {0: 9}, old)
    inputs = run(batch, {0: 2}, new(0, [8, 9], [20]), freed_rows=[0])
    assert inputs.token_ids.tolist() == [8, 9]
    assert inputs.meta.slot_mapping.tolist() == [80, 81]
    assert inputs.meta.seq_lens.tolist() == [2]
    assert (batch.blocks.num_blocks[0], batch.sampling.features[0]) == (1, 0)
    state = batch.sampling
    rare = (state.end_token_ids, state.allowed_token_ids, state.bad_words, state.logprob_token_ids)
    assert (state.logit_bias, *rare) == ({}, {}, {}, {}, {})


def test_a_chunk_that_ends_before_the_last_known_token_does_not_sample() -> None:
    batch = InputBatch(LIMITS, [])
    assert run(batch, {0: 2}, new(0, [1, 2, 3], [0])).sampling.tolist() == []
    assert run(batch, {0: 1}).sampling.tolist() == [0]


def test_hidden_states_are_wanted_of_tokens_that_are_sampled_from_unless_a_prompt_is_scored() -> None:
    prompts = (new(0, [1, 2, 3], [0]), new(1, [4, 5, 6], [1]), new(2, [7, 8], [2]))
    mixed = run(InputBatch(LIMITS, []), {0: 3, 1: 2, 2: 2}, *prompts)
    assert mixed.outputs is not None
    assert mixed.outputs.tolist() == [2, 6]
    assert mixed.hidden_of(mixed.sampling[1:]).tolist() == [1]
    unfinished = run(InputBatch(LIMITS, []), {1: 2}, prompts[1])
    assert unfinished.outputs is not None
    assert unfinished.outputs.tolist() == [1]
    scored = new(0, [1, 2, 3], [0], prompt_logprobs=0)
    both = run(InputBatch(LIMITS, []), {0: 3, 2: 2}, scored, prompts[2])
    assert both.outputs is None
    assert both.hidden_of(both.sampling).tolist() == [2, 4]
    assert run(InputBatch(LIMITS, []), {0: 1}, new(0, [1, 2], [0], computed=1)).outputs is None


def test_an_empty_step_has_no_tokens() -> None:
    inputs = run(InputBatch(LIMITS, []), {})
    assert (len(inputs.rows), len(inputs.token_ids), inputs.cu_seqlens.tolist()) == (0, 0, [0])


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": [-1]},  # the last row is occupied, and must not be found from the end
        {"rows": [4]},
        {"rows": [0]},
        {"block_rows": [-1], "block_ids": [9]},
        {"block_rows": [3], "block_ids": [-1]},
        {"block_rows": [3], "block_ids": [40]},
        {"block_rows": [3, 3], "block_ids": [9]},
        {"block_rows": [3] * 9, "block_ids": list(range(1, 10))},
        {"freed_rows": [-1]},
    ],
)
def test_a_step_that_names_what_is_not_there_is_refused(fields: dict[str, list[int]]) -> None:
    batch = InputBatch(LIMITS, [])
    run(batch, {}, new(3, [5, 6], [0]))
    counts = dict.fromkeys(fields.get("rows", []), 1)
    others = {name: values for name, values in fields.items() if name != "rows"}
    with pytest.raises(WorkerError):
        run(batch, counts, **others)


def test_many_rows_may_get_a_block_in_one_step() -> None:
    batch = InputBatch(LIMITS, [])
    run(batch, dict.fromkeys(range(4), 4), *(new(row, [5, 6, 7, 8], [row]) for row in range(4)))
    batch.append(np.arange(4, dtype=np.int32), np.full(4, 9, np.int32))
    step = {"block_rows": [0, 1, 2, 3], "block_ids": [10, 11, 12, 13]}
    inputs = run(batch, dict.fromkeys(range(4), 1), **step)
    assert inputs.meta.block_tables.tolist() == [[0, 10], [1, 11], [2, 12], [3, 13]]


def test_a_table_may_begin_with_blocks_that_have_left_the_window() -> None:
    batch = InputBatch(LIMITS, [])
    tokens = list(range(1, 15))
    row = msgspec.structs.replace(new(1, tokens, [5, 6], computed=13), first_block=2)
    inputs = run(batch, {1: 1}, row, block_rows=[1], block_ids=[7])
    assert inputs.meta.block_tables.tolist() == [[-1, -1, 5, 6]]
    assert inputs.meta.slot_mapping.tolist() == [6 * 4 + 1]
    assert batch.blocks.num_blocks[1] == 5


def test_a_table_that_begins_before_the_sequence_is_refused() -> None:
    row = msgspec.structs.replace(new(1, [5, 6], [5]), first_block=-1)
    with pytest.raises(WorkerError, match="begins at block -1"):
        run(InputBatch(LIMITS, []), {1: 2}, row)


def test_a_step_whose_rows_have_all_failed_has_no_tokens_beside_a_row_with_an_adapter() -> None:
    batch = InputBatch(LIMITS._replace(num_adapters=1), [])
    run(batch, {0: 3}, msgspec.structs.replace(new(0, [5, 6, 7], [0]), adapter=0))
    batch.fail(RowError(0, "numerical_error", "no numbers"))
    inputs = play(batch, {0: 1})
    assert (inputs.rows.tolist(), inputs.meta.adapters) == ([], None)


def test_a_stage_that_does_not_sample_is_told_the_tokens_it_has_not_got() -> None:
    batch = InputBatch(LIMITS, [], is_pipelined=True)
    run(batch, {0: 3, 1: 2}, new(0, [5, 6, 7], [0]), new(1, [8, 9, 1], [1]), last_token_ids=[-1, -1])
    # Row 1 knows its last prompt token; what it is told beside does not count.
    inputs = run(batch, {0: 1, 1: 1}, last_token_ids=[11, -1])
    assert inputs.token_ids.tolist() == [11, 1]
    assert batch.num_tokens[:2].tolist() == [4, 3]


def test_a_stage_that_samples_needs_not_be_told() -> None:
    batch = InputBatch(LIMITS, [], is_pipelined=True)
    run(batch, {0: 3}, new(0, [5, 6, 7], [0]), last_token_ids=[-1])
    batch.append(np.array([0], np.int32), np.array([12], np.int32))
    assert run(batch, {0: 1}, last_token_ids=[13]).token_ids.tolist() == [12]


def test_a_token_of_another_stage_outside_the_vocabulary_is_refused() -> None:
    batch = InputBatch(LIMITS, [], is_pipelined=True)
    run(batch, {0: 3}, new(0, [5, 6, 7], [0]), last_token_ids=[-1])
    with pytest.raises(WorkerError, match="outside the vocabulary"):
        run(batch, {0: 1}, last_token_ids=[LIMITS.vocab_size])


def test_a_row_that_failed_on_one_stage_goes_on_through_all_but_one_that_no_stage_serves_does_not() -> None:
    batch = InputBatch(LIMITS, [], is_pipelined=True)
    run(batch, {0: 2}, new(0, [5, 6, 7], [0]), last_token_ids=[-1])
    batch.fail(RowError(0, "numerical_error", "no numbers"))
    inputs = play(batch, {0: 1, 1: 1}, new(1, [LIMITS.vocab_size], [1]), last_token_ids=[-1, -1])
    assert inputs.rows.tolist() == [0], "the stage before sends its activations, and does not know"
    assert [error.row for error in inputs.errors] == [0, 1]
    freed = run(batch, {1: 1}, new(1, [4], [1]), freed_rows=[0, 1], last_token_ids=[-1])
    assert (freed.rows.tolist(), freed.errors) == ([1], [])

"""Recorded kernels run again on what memory holds by then; the two ends of a recorded decode step."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch

from splitserve.worker.ops.columns import BatchColumns, LayoutColumns
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.decode import (
    NOT_LAST_TOKEN,
    Recording,
    StepTensors,
    append_tokens,
    decode_inputs,
    take_rows,
    window_inputs,
)

N, MAX_LEN, BLOCK_SIZE = 5, 11, 4


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def columns() -> BatchColumns:
    """Rows 0 to 3 are there; 1 has two tokens to compute, 2 is at the end of the context, 3 of its blocks."""
    return BatchColumns(
        occupied=torch.tensor([True, True, True, True, False]),
        features=torch.tensor([0, 8, 2, 0, 1], dtype=torch.uint16),
        tokens=torch.arange(100, 100 + N * (MAX_LEN + 1), dtype=torch.int32).view(N, -1),
        num_tokens=int32(5, 7, 12, 9, 3),
        num_computed=int32(4, 5, 11, 8, 2),
        num_blocks=int32(2, 2, 3, 2, 1),
        block_table=torch.arange(N * 4, dtype=torch.int32).view(N, 4),
    )


def step_tensors(count: int) -> StepTensors:
    layout = LayoutColumns(*torch.full((4, count), -7, dtype=torch.int32))
    return StepTensors(layout, torch.full((count, 4), -7, dtype=torch.int32), int32(-7, -7))


def lay_out(rows: torch.Tensor, batch: BatchColumns, out: StepTensors) -> None:
    decode_inputs(rows, batch, out, BLOCK_SIZE, MAX_LEN)


def test_inputs_are_those_of_the_next_token_of_each_row() -> None:
    batch, out = columns(), step_tensors(2)
    lay_out(int32(1, 0), batch, out)
    assert out.layout.token_ids.tolist() == [112 + 5, 104]
    assert out.layout.positions.tolist() == [5, 4]
    assert out.layout.slot_mapping.tolist() == [5 * BLOCK_SIZE + 1, 1 * BLOCK_SIZE]
    assert out.layout.seq_lens.tolist() == [6, 5]
    assert out.block_tables.tolist() == [[4, 5, -7, -7], [0, 1, -7, -7]]
    assert out.flags.tolist() == [8 | NOT_LAST_TOKEN, -7]
    assert batch.num_computed.tolist() == [5, 6, 11, 8, 2]


def test_flags_are_zero_where_every_row_draws_and_none_has_a_feature() -> None:
    out = step_tensors(1)
    lay_out(int32(0), columns(), out)
    assert out.flags.tolist() == [0, -7]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (4, "rows: 4 is not in the batch"),
        (5, "rows: 5 is outside the batch"),
        (-1, "rows: -1 is outside the batch"),
        (2, "row 2 would compute up to token 12 of 11"),
        (3, "row 3 would compute up to token 9 of 11, but has 9 tokens and 2 blocks"),
    ],
)
def test_a_row_that_cannot_compute_a_token_is_refused_before_any_advances(row: int, message: str) -> None:
    batch, out = columns(), step_tensors(2)
    with pytest.raises(ValueError, match=message):
        lay_out(int32(0, row), batch, out)
    assert torch.equal(batch.num_computed, columns().num_computed)
    assert out.layout.positions.tolist() == [-7, -7]


def test_a_row_does_not_compute_past_its_known_tokens() -> None:
    batch, out = columns(), step_tensors(1)
    lay_out(int32(0), batch, out)
    with pytest.raises(ValueError, match="token 6 of 11, but has 5 tokens"):
        lay_out(int32(0), batch, out)


@pytest.mark.parametrize("max_len", [0, MAX_LEN + 2])
def test_a_context_longer_than_the_columns_is_refused(max_len: int) -> None:
    with pytest.raises(ValueError, match="max_len: expected 1 to 12"):
        decode_inputs(int32(0), columns(), step_tensors(1), BLOCK_SIZE, max_len)


def test_a_group_with_a_window_is_told_of_the_blocks_that_a_token_sees() -> None:
    table = torch.arange(N * 4, dtype=torch.int32).view(N, 4)
    table[2, 0] = -1
    slots, tables = int32(-7, -7), torch.full((2, 4), -7, dtype=torch.int32)
    # Tokens 11 of row 2 and 4 of row 0 see 6 tokens each: from 6 on, and all.
    window_inputs(int32(2, 0), int32(12, 5), table, (slots, tables), BLOCK_SIZE, 6)
    assert slots.tolist() == [10 * BLOCK_SIZE + 3, 1 * BLOCK_SIZE]
    assert tables.tolist() == [[-7, 9, 10, -7], [0, 1, -7, -7]]


@pytest.mark.parametrize(
    ("row", "seq_len", "window", "message"),
    [
        (5, 1, 6, "rows: 5 is outside the batch"),
        (0, 0, 6, "seq_lens: 0 is not"),
        (0, 17, 6, "seq_lens: 17 is not"),
        (0, 1, 0, "window: must be positive"),
    ],
)
def test_a_group_with_a_window_refuses_what_is_outside(
    row: int, seq_len: int, window: int, message: str
) -> None:
    table = torch.zeros(N, 4, dtype=torch.int32)
    out = int32(-7), torch.full((1, 4), -7, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        window_inputs(int32(row), int32(seq_len), table, out, BLOCK_SIZE, window)
    assert out[0].tolist() == [-7]


@pytest.mark.parametrize("field", LayoutColumns._fields)
def test_columns_of_another_size_are_refused(field: str) -> None:
    out, column = step_tensors(2), torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match=f"{field}: expected size"):
        lay_out(int32(0, 1), columns(), out._replace(layout=out.layout._replace(**{field: column})))


def test_columns_that_are_missing_or_too_many_are_refused() -> None:
    batch = columns()
    for given, message in [(batch[:-1], "block_table: is missing"), ((*batch, batch[0]), "7, got 8")]:
        with pytest.raises(ValueError, match=message):
            lay_out(int32(0), cast("BatchColumns", given), step_tensors(1))


@pytest.mark.parametrize("field", BatchColumns._fields)
def test_columns_of_another_type_or_length_are_refused(field: str) -> None:
    column = getattr(columns(), field)
    with pytest.raises(TypeError, match=f"{field}: unsupported dtype float32"):
        lay_out(int32(0), columns()._replace(**{field: column.float()}), step_tensors(1))
    # The first says how many rows there are.
    if field != "occupied":
        with pytest.raises(ValueError, match=f"{field}: expected size 5"):
            lay_out(int32(0), columns()._replace(**{field: column[:-1]}), step_tensors(1))


@pytest.mark.parametrize("field", ["block_tables", "flags"])
def test_outputs_of_another_size_are_refused(field: str) -> None:
    wrong = step_tensors(3)._replace(flags=int32(0, 0, 0))
    with pytest.raises(ValueError, match=f"{field}: expected size"):
        lay_out(int32(0, 1), columns(), step_tensors(2)._replace(**{field: getattr(wrong, field)}))


def test_drawn_tokens_are_appended_and_rows_without_one_counted() -> None:
    batch, flags = columns(), int32(-7, -7)
    append_tokens(int32(3, 0, 1), int32(41, -1, 43), batch.tokens, batch.num_tokens, flags)
    expected = columns()
    expected.tokens[3, 9], expected.tokens[1, 7] = 41, 43
    assert torch.equal(batch.tokens, expected.tokens)
    assert batch.num_tokens.tolist() == [5, 8, 12, 10, 3]
    assert flags.tolist() == [-7, 1]


@pytest.mark.parametrize(("row", "message"), [(2, "2 is full"), (5, "5 is outside"), (-1, "-1 is outside")])
def test_a_token_that_has_no_place_is_refused_before_any_is_appended(row: int, message: str) -> None:
    batch = columns()
    with pytest.raises(ValueError, match=message):
        append_tokens(int32(0, row), int32(41, 42), batch.tokens, batch.num_tokens, int32(0, 0))
    assert torch.equal(batch.tokens, columns().tokens)
    assert torch.equal(batch.num_tokens, columns().num_tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_rows_of_a_column_are_taken(dtype: torch.dtype) -> None:
    column, out = torch.tensor([5, -6, 7, 8], dtype=dtype), torch.zeros(3, dtype=dtype)
    take_rows(out, column, int32(3, 1, 3))
    assert out.tolist() == [8, -6, 8]
    with pytest.raises(ValueError, match="4 is outside"):
        take_rows(out, column, int32(0, 4, 0))


def test_a_replay_computes_with_what_memory_holds_by_then() -> None:
    x, out, weight = torch.randn(3, 8), torch.empty(3, 8), torch.ones(8)
    total = torch.zeros(3, 4)
    with Recording() as recording:
        ops.rms_norm(out, x, weight, 1e-6)
        ops.silu_and_mul(total, out)
    x.copy_(torch.randn(3, 8))
    weight.fill_(2.0)
    recording.replay()
    expected, again = torch.empty(3, 8), torch.empty(3, 4)
    ops.rms_norm(expected, x, weight, 1e-6)
    ops.silu_and_mul(again, expected)
    assert torch.equal(out, expected)
    assert torch.equal(total, again)


def test_ids_are_checked_in_every_replay() -> None:
    positions, cos_sin = int32(0, 1), torch.ones(3, 4)
    q, k, v = torch.randn(3, 2, 1, 4)
    k_cache, v_cache = torch.zeros(2, 1, 1, 4, 4)
    with Recording() as recording:
        ops.rotary_kv_write(q, k, v, positions, cos_sin, k_cache, v_cache, int32(0, 1))
    positions[1] = 3
    with pytest.raises(ValueError, match="positions: 3 is outside"):
        recording.replay()


def test_a_kernel_after_the_recording_is_not_part_of_it() -> None:
    x, out, other = torch.randn(1, 8), torch.empty(1, 8), torch.zeros(1, 8)
    with Recording() as recording:
        ops.gelu(out, x)
    ops.gelu(other, x)
    other.zero_()
    recording.replay()
    assert other.count_nonzero() == 0


def test_recordings_do_not_nest_and_an_exception_ends_one() -> None:
    with pytest.raises(ValueError, match="recording already"), Recording(), Recording():
        pass
    with Recording() as recording:
        pass
    recording.replay()


def test_sample_takes_positions_of_either_width() -> None:
    logits, drawn = torch.randn(4, 50), [torch.empty(4, dtype=torch.int32) for _ in range(2)]
    ones = torch.ones(4)
    seeds = torch.from_numpy(np.arange(4))
    for out, dtype in zip(drawn, (torch.int32, torch.int64), strict=True):
        positions = torch.tensor([5, 6, 7, 2**30], dtype=dtype)
        ops.sampling.sample(
            out, logits, ones, torch.zeros(4, dtype=torch.int32), ones, ones * 0, seeds, positions
        )
    assert torch.equal(*drawn)

"""The columns of a captured step: one piece of memory, filled from the batch, padded to the step's size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.graphs.cuda_step import CudaStep
from splitserve.worker.ops.columns import LayoutColumns, declared
from tests.worker.sampling.rows import Row, make_batch

PARAMS = SequenceSampling(temperature=0.5, top_k=7, top_p=0.75, min_p=0.25, seed=2**63 + 9)


def execute(batch: InputBatch, rows: list[int], num_tokens: list[int]) -> StepInputs:
    return batch.prepare(SchedulerOutput(1, rows=pack_int32(rows), num_tokens=pack_int32(num_tokens)))


@pytest.fixture
def batch() -> InputBatch:
    """Row 0 of two tokens with parameters of its own, row 1 of three; both about to decode the next one."""
    batch = make_batch([Row(PARAMS, [1, 2]), Row(SequenceSampling(seed=0), [3, 4, 5])])
    execute(batch, [0, 1], [2, 3])
    batch.append(np.array([0, 1], np.int32), np.array([20, 21], np.int32))
    return batch


def cuda_step(size: int) -> CudaStep:
    return CudaStep(torch.zeros(9, dtype=torch.int32), torch.zeros(size, 5, dtype=torch.int32), size)


def filled(batch: InputBatch, size: int) -> CudaStep:
    step = cuda_step(size)
    step.fill(CpuDevice(), batch, execute(batch, [1, 0], [1, 1]))
    step.feed()
    return step


def test_a_step_is_what_the_batch_lays_out(batch: InputBatch) -> None:
    step = filled(batch, 2)
    assert step.token_ids.tolist() == [21, 20]
    assert step.meta.positions.tolist() == [3, 2]
    assert step.meta.slot_mapping.tolist() == [3, 2]
    assert step.meta.seq_lens.tolist() == [4, 3]
    assert step._draw.positions.tolist() == [4, 3]
    assert step._draw.places.tolist() == [2, 1]
    columns = [column.tolist() for column in step._sampling]
    assert [column[1] for column in columns] == [0.5, 7, 0.75, 0.25, 9 - 2**63]


def test_the_rows_that_pad_a_step_are_as_declared(batch: InputBatch) -> None:
    step = filled(batch, 4)
    for columns in (step._layout, step._sampling, step._draw):
        for column, values in zip(declared(type(columns)).values(), columns, strict=True):
            assert values[2:].tolist() == [column.initial] * 2
    assert step.meta.block_tables[2:, 0].tolist() == [0, 0]


@pytest.mark.parametrize("size", [1, 2, 3, 40])
def test_every_column_is_aligned_to_its_elements(size: int) -> None:
    step = cuda_step(size)
    for columns in (step._layout, step._sampling, step._draw):
        assert all(values.data_ptr() % values.element_size() == 0 for values in columns)


def test_an_unknown_token_is_the_one_the_row_drew_last(batch: InputBatch) -> None:
    step = cuda_step(2)
    step.last_drawn[:3] = torch.tensor([50, 51, 52])
    batch.tokens[1, 3] = -1
    step.fill(CpuDevice(), batch, execute(batch, [1, 0], [1, 1]))
    step.feed()
    assert step.token_ids.tolist() == [52, 20]


def test_eager_and_captured_steps_have_the_same_columns(batch: InputBatch) -> None:
    layout = execute(batch, [1, 0], [1, 1]).layout()
    for (name, column), values in zip(declared(LayoutColumns).items(), layout, strict=True):
        assert values.dtype == column.dtype, name


def test_a_step_has_slots_and_tables_of_window_groups_in_memory_that_stays(batch: InputBatch) -> None:
    tables = torch.full((2, 4, 5), -1, dtype=torch.int32)
    first = torch.zeros(4, 5, dtype=torch.int32)
    step = CudaStep(torch.zeros(9, dtype=torch.int32), first, 3, window_tables=tables)
    groups = step.meta.of_groups()[1:]
    assert [group.slot_mapping.tolist() for group in groups] == [[-1] * 3] * 2
    assert tables[:, :, 0].tolist() == [[0, 0, 0, -1]] * 2
    inputs = execute(batch, [1, 0], [1, 1])
    given = inputs.meta._replace(
        window_slots=torch.tensor([[4, 5], [6, 7]], dtype=torch.int32),
        window_tables=torch.arange(4, dtype=torch.int32).view(2, 2, 1),
    )
    step.fill(CpuDevice(), batch, inputs._replace(meta=given))
    assert [group.slot_mapping.tolist() for group in groups] == [[4, 5, -1], [6, 7, -1]]
    assert [group.block_tables[:, 0].tolist() for group in groups] == [[0, 1, 0], [2, 3, 0]]

"""The columns of a decode step, each declared once: what the batch keeps of its rows, what a step is told.

N: rows of the batch, R: rows of a step. The batch, the recorded steps of the CPU and the captured ones of a
GPU make their memory from these declarations; csrc/cpu/decode.cpp is compared with them when it is loaded.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
# What numpy looks up with as it is; an index of another integer type it converts, for 0.5 us.
Index = npt.NDArray[np.intp]
# Of the dtype that is declared.
Array = npt.NDArray[Any]
ColumnT = TypeVar("ColumnT")


class Width(enum.Enum):
    """How many elements a column has for each row.

    One, or as many as a row may have tokens or KV blocks, or its index of n-grams has heads.
    """

    ONE = enum.auto()
    TOKENS = enum.auto()
    BLOCKS = enum.auto()
    HEADS = enum.auto()


class Column(NamedTuple):
    """One declaration.

    Attributes:
        dtype: of its elements.
        width: elements per row.
        initial: what a row holds until it is filled, and what the rows hold that only pad a captured step.
    """

    dtype: type[np.generic]
    width: Width = Width.ONE
    initial: float = 0

    @property
    def num_dims(self) -> int:
        """Of its memory: the rows, and their elements if they may have several."""
        return 1 if self.width is Width.ONE else 2

    def allocate(self, num_rows: int, elements: Mapping[Width, int] = MappingProxyType({})) -> Array:
        """Return new memory, [num_rows] or [num_rows, elements[width]]; rows touch its pages as they fill."""
        shape = (num_rows,) if self.width is Width.ONE else (num_rows, elements[self.width])
        return np.full(shape, self.initial, self.dtype) if self.initial else np.zeros(shape, self.dtype)


def _column(dtype: type[np.generic], width: Width = Width.ONE, initial: float = 0) -> Any:
    """Declare a field of the classes below: its default is the declaration, which declared() reads."""
    return Column(dtype, width, initial)


class BatchColumns(NamedTuple, Generic[ColumnT]):
    """What the batch keeps of its rows and a decode step reads, indexed by row of the batch.

    Filled by InputBatch; `features` by its SamplingState, `num_blocks` and `block_table` by its BlockTables.

    Attributes:
        occupied: whether the row is in the batch.
        features: Feature bits of its sampling parameters.
        tokens: known tokens, prompt and output.
        num_tokens: how many these are.
        num_computed: those of which steps were given the input.
        num_blocks: blocks of the KV cache that the row holds.
        block_table: their ids, in the order of the row's tokens.
    """

    occupied: ColumnT = _column(np.bool_)
    features: ColumnT = _column(np.uint16)
    tokens: ColumnT = _column(np.int32, Width.TOKENS)
    num_tokens: ColumnT = _column(np.int32)
    num_computed: ColumnT = _column(np.int32)
    num_blocks: ColumnT = _column(np.int32)
    block_table: ColumnT = _column(np.int32, Width.BLOCKS)


class LayoutColumns(NamedTuple, Generic[ColumnT]):
    """Where the one token of each row of a step stands, indexed by row of the step.

    Filled by InputBatch.prepare, or by the kernel decode_inputs. Padding attends to one position of block 0
    and writes nothing.

    Attributes:
        token_ids: the model's input.
        positions, slot_mapping, seq_lens: as AttentionMetadata has them.
    """

    token_ids: ColumnT = _column(np.int32)
    positions: ColumnT = _column(np.int32)
    slot_mapping: ColumnT = _column(np.int32, initial=-1)
    seq_lens: ColumnT = _column(np.int32, initial=1)


class SamplingColumns(NamedTuple, Generic[ColumnT]):
    """The sampling parameters that every row has, in the order in which SamplingOps.sample takes them.

    SamplingState keeps them, [N]; who samples gathers them for the rows of a step, [R].
    """

    temperature: ColumnT = _column(np.float32)
    top_k: ColumnT = _column(np.int32)
    top_p: ColumnT = _column(np.float32, initial=1)
    min_p: ColumnT = _column(np.float32)
    seed: ColumnT = _column(np.int64)


class DrawColumns(NamedTuple, Generic[ColumnT]):
    """What a captured step is told of each row beside that, [R]; filled by CudaStep.

    Attributes:
        positions: of the token to be drawn.
        places: the row's in CudaStep.last_drawn.
        adapters: slot of its adapter, -1 for none.
    """

    positions: ColumnT = _column(np.int64, initial=1)
    places: ColumnT = _column(np.int64)
    adapters: ColumnT = _column(np.int32, initial=-1)


class DraftColumns(NamedTuple, Generic[ColumnT]):
    """How many tokens rows draft, indexed by row of the batch; drafts stand behind the row's tokens.

    Kept by worker.speculation.draft_sheet; all but the first are filled by kernels, see worker.ops.drafts.

    Attributes:
        max_num_computed: tokens that ever need computing.
        room: tokens that the row may draft in the step.
        allowed: tokens that the drafter whose turn it is may add.
        num_drafts: tokens that are drafted so far; -1 if nothing is left to compute.
    """

    max_num_computed: ColumnT = _column(np.int32)
    room: ColumnT = _column(np.int32)
    allowed: ColumnT = _column(np.int32)
    num_drafts: ColumnT = _column(np.int32)


class AccountColumns(NamedTuple, Generic[ColumnT]):
    """What one drafter may do, indexed by row of the batch; kept by worker.speculation.accounts.

    Attributes:
        width: most drafts of the next step.
        pause: steps that could draft and do not.
    """

    width: ColumnT = _column(np.int32)
    pause: ColumnT = _column(np.int32)


class NgramColumns(NamedTuple, Generic[ColumnT]):
    """An index of n-grams of each row's text, indexed by row of the batch.

    Attributes:
        num_indexed: place behind the last n-gram that is indexed; 0 for a row that is new.
        heads: by hash of an n-gram, the place behind the latest one.
        links: by place behind an n-gram, that behind the one before it with the same hash; 0 for none.
    """

    num_indexed: ColumnT = _column(np.int32)
    heads: ColumnT = _column(np.int32, Width.HEADS)
    links: ColumnT = _column(np.int32, Width.TOKENS)


class PredictionColumns(NamedTuple, Generic[ColumnT]):
    """Texts that outputs are expected to repeat, and an index of their n-grams, indexed by row of the batch.

    Filled by worker.speculation.prediction_drafter, and from `place` on by the kernel draft_predictions.

    Attributes:
        text: its tokens.
        num_text: how many these are; 0 for a row without a prediction.
        num_prompt: tokens of the row in front of its output.
        place: where the last drafts begin in the text.
        place_end: how many tokens the row had in front of them.
        num_indexed, heads, links: as NgramColumns has them, of the text.
    """

    text: ColumnT = _column(np.int32, Width.TOKENS)
    num_text: ColumnT = _column(np.int32)
    num_prompt: ColumnT = _column(np.int32)
    place: ColumnT = _column(np.int32)
    place_end: ColumnT = _column(np.int32)
    num_indexed: ColumnT = _column(np.int32)
    heads: ColumnT = _column(np.int32, Width.HEADS)
    links: ColumnT = _column(np.int32, Width.TOKENS)


ColumnsT = TypeVar("ColumnsT", bound=NamedTuple)


def declared(columns: type[ColumnsT]) -> dict[str, Column]:
    """Return the declarations of one of the classes above by name, in its order."""
    return columns._field_defaults


def allocate(
    columns: type[ColumnsT], num_rows: int, elements: Mapping[Width, int] = MappingProxyType({})
) -> ColumnsT:
    """Return new memory for all columns of a class.

    Args:
        columns: the class, of arrays: BatchColumns[Array] for one.
        num_rows: rows of the batch or of the step.
        elements: per row, of the widths that occur beside Width.ONE.
    """
    return columns._make(column.allocate(num_rows, elements) for column in declared(columns).values())


def describe_columns() -> str:
    """Return what decode_columns() of csrc/cpu/decode.cpp has to say of the columns that kernels see.

    Name, dtype and number of dimensions of each column of BatchColumns, then of LayoutColumns, one a line.
    """
    columns = {**declared(BatchColumns), **declared(LayoutColumns)}
    return "".join(f"{name} {np.dtype(c.dtype).name} {c.num_dims}\n" for name, c in columns.items())


def check_columns(described: str) -> None:
    """Compare the declarations with what the library of CPU kernels says of the columns it reads and writes.

    Args:
        described: as describe_columns() has it; empty for a library that cannot say it.

    Raises:
        ImportError: they differ, since the library was built from other sources.
    """
    expected, found = describe_columns().splitlines(), described.splitlines()
    if found != expected:
        raise ImportError(
            f"the kernels were built for the columns {found}, and not for {expected}: build them again with "
            "`pip install -e . --no-deps` (see docs/kernels.md)"
        )

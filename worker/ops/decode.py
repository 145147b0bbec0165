"""Recording kernels on the CPU, and the kernels at both ends of a recorded decode step.

R: rows of the step, N: rows of the batch. As in worker.ops.interface, wrong ranks, shapes and ids raise
ValueError, wrong dtypes TypeError; both name the argument, and nothing is written then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from splitserve.worker._native import load_library
from splitserve.worker.ops.columns import BatchColumns, LayoutColumns, check_columns

if TYPE_CHECKING:
    from torch import Tensor

_lib = load_library("splitserve_cpu")
# A library of before this check does not know the function.
check_columns(getattr(_lib, "decode_columns", str)())

# Set in StepTensors.flags[0], beside the rows' features, if a row computes a token that is not its last.
NOT_LAST_TOKEN = 1 << 16

Replay = Callable[[], None]


class StepTensors(NamedTuple):
    """The inputs of a decode step of R rows, in memory that stays.

    Attributes:
        layout: of the R tokens.
        block_tables: int32 [R, max_blocks], as AttentionMetadata has them.
        flags: int32 [2]: the features of all rows and NOT_LAST_TOKEN, or-ed; rows that got no token.
    """

    layout: LayoutColumns[Tensor]
    block_tables: Tensor
    flags: Tensor


class Recording:
    """Notes every kernel that this thread runs within a `with` block; `replay` then runs them in one call.

    A replay computes with what the same memory holds by then: the tensors of all calls have to live, and lie
    where they are, as long as it is used. Operations of worker.ops.cpu are noted but for penalties and
    logprobs; what torch or Python compute in between is not. No number of threads, nor an instruction set is
    noted.
    """

    replay: Replay
    _current: ClassVar[Recording | None] = None

    def __init__(self) -> None:
        self._pieces: list[Replay] = []

    @classmethod
    def current(cls) -> Recording | None:
        """Return the recording that is being made, None if there is none; one thread makes them."""
        return cls._current

    def __enter__(self) -> Recording:
        """Begin; ValueError if this thread is recording already."""
        _lib.start_recording()
        Recording._current = self
        return self

    def __exit__(self, *exception: object) -> None:
        """End; what was noted before an exception is dropped."""
        Recording._current = None
        self._pieces.append(_lib.stop_recording())
        if len(self._pieces) == 1:
            self.replay = self._pieces[0]
        else:
            self.replay = partial(_run_all, tuple(self._pieces))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing of what runs within a `with` block."""
        self._pieces.append(_lib.stop_recording())
        try:
            yield
        finally:
            _lib.start_recording()

    def call(self, function: Replay) -> None:
        """Call a function of Python now and at this place of every replay; its own kernels are not noted."""
        with self.paused():
            function()
            self._pieces.append(function)


def _run_all(pieces: tuple[Replay, ...]) -> None:
    for piece in pieces:
        piece()


def decode_inputs(
    rows: Tensor, columns: BatchColumns[Tensor], out: StepTensors, block_size: int, max_model_len: int
) -> None:
    """Lay out the next token of each row and advance num_computed.

    Args:
        rows: int32 [R], distinct rows of the batch.
        columns: of the batch.
        out: overwritten but for flags[1].
        block_size: tokens per block.
        max_model_len: most tokens of a row that are computed.

    Raises:
        ValueError: a row is not in the batch, or would compute past its known tokens, its blocks or the
            context; nothing was changed.
    """
    _lib.decode_inputs(rows, columns, out.layout, out.block_tables, out.flags, block_size, max_model_len)


def window_inputs(
    rows: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    out: tuple[Tensor, Tensor],
    block_size: int,
    window: int,
) -> None:
    """Lay out the next token of each row for layers with a window, after decode_inputs().

    Args:
        rows: int32 [R], distinct rows of the batch.
        seq_lens: int32 [R], of the rows with their next token.
        block_table: int32 [N, max_blocks], of the group of these layers.
        out: slot_mapping [R] and block_tables [R, max_blocks] of the group, both int32; of a row's blocks
            only those of the window are written.
        block_size: tokens per block.
        window: tokens that a token sees.
    """
    _lib.window_inputs(rows, seq_lens, block_table, *out, block_size, window)


def take_rows(out: Tensor, column: Tensor, rows: Tensor) -> None:
    """Write column[rows] to out.

    Args:
        out: [R], like column.
        column: float32, int32 or int64 [N].
        rows: int32 [R].
    """
    _lib.take_rows(out, column, rows)


def append_tokens(rows: Tensor, token_ids: Tensor, tokens: Tensor, num_tokens: Tensor, flags: Tensor) -> None:
    """Append token_ids[i] to the known tokens of rows[i] unless it is negative.

    Args:
        rows: int32 [R], distinct rows.
        token_ids: int32 [R].
        tokens: int32 [N, L].
        num_tokens: int32 [N], advanced.
        flags: int32 [2]; flags[1] becomes the number of negative ids.
    """
    _lib.append_tokens(rows, token_ids, tokens, num_tokens, flags)

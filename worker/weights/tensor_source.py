"""Where the numbers of a part come from: one tensor of a checkpoint, or two with its codes and scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.device.base import Device
from splitserve.worker.layers.parameter import Part, Window
from splitserve.worker.ops.quantization import GROUP_COLUMNS, dequantize_mxfp4
from splitserve.worker.weights.reading import DTYPES, read_rectangle

_LOADABLE = ("F32", "BF16", "F16")
_CODES_PER_BYTE = 2
# Plus 127, of a power of two whose sixfold is a number; 255 is no number.
_LARGEST_EXPONENT = 252


class Staging:
    """The buffer of all pieces, in memory that the device copies from; it grows to the largest."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> torch.Tensor:
        """Return that many bytes of undefined content, lost when taken again."""
        if self._buffer.numel() < num_bytes:
            self._buffer = self._device.host_pages((num_bytes,), torch.uint8)
        return self._buffer[:num_bytes]


class TensorSource(Protocol):
    """The numbers of a part."""

    @property
    def tensors(self) -> tuple[CheckpointTensor, ...]:
        """The checkpoint's tensors that they come from."""

    def num_bytes(self, window: Window) -> int:
        """Return how many bytes of the files a region takes."""

    def row_bytes(self, window: Window) -> int:
        """Return how much memory a row of a region takes when it is read."""

    def read(self, window: Window, staging: Staging) -> torch.Tensor:
        """Return the numbers of a region, [rows] or [rows, columns], valid until the next call."""


def make_source(tensors: Sequence[CheckpointTensor], part: Part) -> TensorSource:
    """Return the numbers of a part.

    Args:
        tensors: of the names that the part has.
        part: what is asked for.

    Raises:
        ModelLoadError: a tensor has another shape, or a dtype that cannot be loaded.
    """
    if part.is_mxfp4:
        codes, scales = tensors
        return _Mxfp4.checked(codes, scales, part)
    (tensor,) = tensors
    return _Plain.checked(tensor, part)


class _Plain(NamedTuple):
    """Numbers as they are."""

    tensor: CheckpointTensor

    @classmethod
    def checked(cls, tensor: CheckpointTensor, part: Part) -> _Plain:
        """Return the source if the tensor fits; raises as make_source does."""
        _check_shape(tensor, part.shape)
        if tensor.entry.dtype not in _LOADABLE:
            raise ModelLoadError(
                f"{_where(tensor)} has dtype {tensor.entry.dtype}; "
                f"supported are {', '.join(_LOADABLE)}, not quantized"
            )
        return cls(tensor)

    @property
    def tensors(self) -> tuple[CheckpointTensor, ...]:
        """That tensor."""
        return (self.tensor,)

    def row_bytes(self, window: Window) -> int:
        """See TensorSource.row_bytes."""
        return window.width * self._dtype.itemsize

    def num_bytes(self, window: Window) -> int:
        """See TensorSource.num_bytes."""
        return len(window.rows) * self.row_bytes(window)

    def read(self, window: Window, staging: Staging) -> torch.Tensor:
        """See TensorSource.read."""
        # A matrix or a vector, or several of them behind each other.
        row_elements = 1 if window.columns is None else self.tensor.entry.shape[-1]
        piece = staging.take(self.num_bytes(window))
        read_rectangle(self.tensor, window, row_elements, piece.numpy())
        values = piece.view(self._dtype)
        if self.tensor.offset:
            values = values.float() + self.tensor.offset
        return values if window.columns is None else values.view(-1, len(window.columns))

    @property
    def _dtype(self) -> torch.dtype:
        return DTYPES[self.tensor.entry.dtype]


class _Mxfp4(NamedTuple):
    """Codes of 4 bits [.., K / 32, 16] and their scales [.., K / 32], both bytes, of a matrix [.., K]."""

    codes: CheckpointTensor
    scales: CheckpointTensor

    @classmethod
    def checked(cls, codes: CheckpointTensor, scales: CheckpointTensor, part: Part) -> _Mxfp4:
        """Return the source if both fit; raises as make_source does."""
        groups = (*part.shape[:-1], part.shape[-1] // GROUP_COLUMNS)
        _check_shape(codes, (*groups, GROUP_COLUMNS // _CODES_PER_BYTE))
        _check_shape(scales, groups)
        for tensor in (codes, scales):
            if tensor.entry.dtype != "U8":
                raise ModelLoadError(f"{_where(tensor)} has dtype {tensor.entry.dtype}, MXFP4 has U8")
        return cls(codes, scales)

    @property
    def tensors(self) -> tuple[CheckpointTensor, ...]:
        """Both."""
        return self.codes, self.scales

    def row_bytes(self, window: Window) -> int:
        """See TensorSource.row_bytes: bfloat16."""
        return window.width * torch.bfloat16.itemsize

    def num_bytes(self, window: Window) -> int:
        """See TensorSource.num_bytes."""
        return len(window.rows) * (window.width // _CODES_PER_BYTE + window.width // GROUP_COLUMNS)

    def read(self, window: Window, staging: Staging) -> torch.Tensor:
        """See TensorSource.read."""
        piece = staging.take(self.num_bytes(window))
        num_codes = len(window.rows) * (window.width // _CODES_PER_BYTE)
        parts = piece[:num_codes], piece[num_codes:]
        assert window.columns is not None
        assert window.columns.start % GROUP_COLUMNS == window.width % GROUP_COLUMNS == 0, "whole groups"
        columns_per_byte = (_CODES_PER_BYTE, GROUP_COLUMNS)
        for tensor, per_byte, target in zip(self.tensors, columns_per_byte, parts, strict=True):
            columns = range(window.columns.start // per_byte, window.columns.stop // per_byte)
            row_bytes = self.scales.entry.shape[-1] * GROUP_COLUMNS // per_byte
            read_rectangle(tensor, Window(window.rows, columns), row_bytes, target.numpy())
        codes, scales = (part.view(len(window.rows), -1) for part in parts)
        if (scales > _LARGEST_EXPONENT).any():
            raise ModelLoadError(f"{_where(self.scales)} holds a scale that is no number, or too large")
        return dequantize_mxfp4(codes, scales)


def _check_shape(tensor: CheckpointTensor, shape: tuple[int, ...]) -> None:
    if tensor.entry.shape != shape:
        raise ModelLoadError(
            f"{_where(tensor)} has shape {list(tensor.entry.shape)}, config.json asks for {list(shape)}"
        )


def _where(tensor: CheckpointTensor) -> str:
    return f"{tensor.file.path}: tensor {tensor.name!r}"

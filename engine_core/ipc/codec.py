"""How do messages become bytes and back? One encoder, one decoder per direction, packed integer columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.messages import EngineMessage, FrontendMessage
from splitserve.engine_core.ipc.worker_messages import FromWorkerMessage, ToWorkerMessage

_encoder = msgspec.msgpack.Encoder()
T = TypeVar("T")

encode = _encoder.encode


class MessageDecoder(Generic[T]):
    """Decodes the frames of one direction into its closed union of structs."""

    def __init__(self, union: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)

    def decode(self, frame: bytes | memoryview) -> T:
        """Decode one frame.

        Raises:
            ProtocolError: for anything that is not a valid message. Besides its own DecodeError, msgspec can
                raise UnicodeDecodeError and RecursionError; peers can cause all three.
        """
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise ProtocolError(f"{type(error).__name__}: {error}") from None


frontend_decoder: MessageDecoder[FrontendMessage] = MessageDecoder(FrontendMessage)
engine_decoder: MessageDecoder[EngineMessage] = MessageDecoder(EngineMessage)
to_worker_decoder: MessageDecoder[ToWorkerMessage] = MessageDecoder(ToWorkerMessage)
from_worker_decoder: MessageDecoder[FromWorkerMessage] = MessageDecoder(FromWorkerMessage)

_INT32 = np.dtype("<i4")
_INT64 = np.dtype("<i8")
_FLOAT32 = np.dtype("<f4")


def pack_int32(values: Iterable[int] | npt.NDArray[np.integer]) -> bytes:
    """Pack token ids, rows or block ids as little-endian int32."""
    return np.asarray(values, _INT32).tobytes()


def unpack_int32(column: bytes) -> npt.NDArray[np.int32]:
    """View a column of little-endian int32; read-only, shape [n].

    Raises:
        ProtocolError: the length is not a multiple of four.
    """
    return _unpack(column, _INT32)


def pack_int64(values: Iterable[int] | npt.NDArray[np.integer]) -> bytes:
    """Pack handles as little-endian int64."""
    return np.asarray(values, _INT64).tobytes()


def unpack_int64(column: bytes) -> npt.NDArray[np.int64]:
    """View a column of little-endian int64; read-only, shape [n].

    Raises:
        ProtocolError: the length is not a multiple of eight.
    """
    return _unpack(column, _INT64)


def pack_float32(values: Iterable[float] | npt.NDArray[np.floating]) -> bytes:
    """Pack logprobs as little-endian float32."""
    return np.asarray(values, _FLOAT32).tobytes()


def unpack_float32(column: bytes) -> npt.NDArray[np.float32]:
    """View a column of little-endian float32; read-only, shape [n].

    Raises:
        ProtocolError: the length is not a multiple of four.
    """
    return _unpack(column, _FLOAT32)


def _unpack(column: bytes, dtype: np.dtype) -> npt.NDArray:
    if len(column) % dtype.itemsize:
        raise ProtocolError(f"a column of {dtype.name} has {len(column)} bytes")
    return np.frombuffer(column, dtype=dtype)

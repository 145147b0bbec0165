"""How does a process here call the library of another machine? Each call goes to a process of an emulator.

Tensors are torch's, in this process: their memory is sent with every call, and comes back as the call has
left it. What outlives a call, such as a recorded program, cannot be called so.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import io
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import BinaryIO, TypeAlias, cast

import torch

Value: TypeAlias = "bool | int | float | str | list[Value] | None"
Argument: TypeAlias = "Value | torch.Tensor | Sequence[Argument]"

# What DLPack calls a dtype: its code and its bits.
DTYPES = {
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.uint16: (1, 16),
    torch.uint32: (1, 32),
    torch.uint64: (1, 64),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.bool: (6, 8),
    torch.float8_e4m3fn: (10, 8),
}


class RemoteLibrary:
    """The functions of a library, as attributes, as tvm_ffi.Module has them.

    Args:
        command: starts the process, tests/arm/runner.cpp.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # The process takes one call at a time.
        self._lock = threading.Lock()
        atexit.register(self.close)

    def __getattr__(self, name: str) -> Callable[..., Value]:
        return lambda *arguments: self._call(name, arguments)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _call(self, name: str, arguments: Sequence[Argument]) -> Value:
        memory: dict[int, torch.UntypedStorage] = {}
        body = io.BytesIO()
        body.write(struct.pack("=q", len(arguments)))
        for argument in arguments:
            _write(body, argument, memory)
        with self._lock:
            return self._exchange(name, body.getvalue(), memory)

    def _exchange(self, name: str, arguments: bytes, memory: dict[int, torch.UntypedStorage]) -> Value:
        out, answer = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        out.write(_text(name) + struct.pack("=q", len(memory)))
        for storage in memory.values():
            out.write(struct.pack("=q", storage.nbytes()) + _bytes_of(storage))
        out.write(arguments)
        out.flush()
        if (state := answer.read(1)) == b"":
            raise AssertionError(f"the process has ended in a call of {name}")
        error = _read_error(answer) if state == b"e" else None
        result = None if error else _read(answer)
        for storage in memory.values():
            data = answer.read(storage.nbytes())
            assert len(data) == storage.nbytes(), f"the process ended in a call of {name}"
            ctypes.memmove(storage.data_ptr(), data, len(data))
        if error:
            raise error
        return result


def _bytes_of(storage: torch.UntypedStorage) -> bytes:
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("=q", len(data)) + data


def _write(out: BinaryIO, value: Argument, memory: dict[int, torch.UntypedStorage]) -> None:
    match value:
        case None:
            out.write(b"n")
        case bool():
            out.write(struct.pack("=c?", b"b", value))
        case int():
            out.write(struct.pack("=cq", b"i", value))
        case float():
            out.write(struct.pack("=cd", b"f", value))
        case str():
            out.write(b"s" + _text(value))
        case torch.Tensor():
            _write_tensor(out, value, memory)
        case Sequence():
            out.write(struct.pack("=cq", b"a", len(value)))
            for item in value:
                _write(out, item, memory)
        case _:
            raise NotImplementedError(f"an argument of type {type(value)}")


def _write_tensor(out: BinaryIO, tensor: torch.Tensor, memory: dict[int, torch.UntypedStorage]) -> None:
    storage = tensor.untyped_storage()
    memory.setdefault(storage.data_ptr(), storage)
    place = list(memory).index(storage.data_ptr())
    offset = tensor.storage_offset() * tensor.element_size()
    out.write(struct.pack("=cqqBBi", b"t", place, offset, *DTYPES[tensor.dtype], tensor.dim()))
    out.write(struct.pack(f"={2 * tensor.dim()}q", *tensor.shape, *tensor.stride()))


def _read_text(answer: BinaryIO) -> str:
    (size,) = struct.unpack("=q", answer.read(8))
    return answer.read(size).decode()


def _read_error(answer: BinaryIO) -> Exception:
    kind, message = _read_text(answer), _read_text(answer)
    return cast(type[Exception], getattr(builtins, kind, RuntimeError))(message)


def _read(answer: BinaryIO) -> Value:
    match kind := answer.read(1):
        case b"n":
            return None
        case b"b":
            return answer.read(1) != b"\0"
        case b"i":
            return cast(int, struct.unpack("=q", answer.read(8))[0])
        case b"f":
            return cast(float, struct.unpack("=d", answer.read(8))[0])
        case b"s":
            return _read_text(answer)
        case b"a":
            (count,) = struct.unpack("=q", answer.read(8))
            return [_read(answer) for _ in range(count)]
    raise AssertionError(f"the process has ended or answered {kind!r}")

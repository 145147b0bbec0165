"""Which instruction set is chosen when the library is loaded."""

import subprocess
import sys

import pytest

from splitserve.worker.ops.cpu import ops

# Large enough for AVX-512, too small for the tiles of AMX.
SMALL_SIGNAL_STACK = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(8192)
stack = Stack(ctypes.addressof(memory), 0, 8192)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
from splitserve.worker.ops.cpu import ops
print(ops.best_cpu_isa())
"""


@pytest.fixture(autouse=True)
def isa() -> str:
    return ops.best_cpu_isa()


def test_where_the_system_refuses_tiles_vectors_are_used(isa: str) -> None:
    if isa != "amx":
        pytest.skip("no AMX here")
    command = [sys.executable, "-c", SMALL_SIGNAL_STACK]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "avx512_bf16"


def test_refuses_floats_where_pairs_are_as_fast() -> None:
    if ops.multiplies_floats():
        pytest.skip("for other processors")
    with pytest.raises(ValueError, match="is_used: this processor multiplies bfloat16 as fast"):
        ops.set_multiplies_floats(True)

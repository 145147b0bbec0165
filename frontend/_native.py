"""The frontend's native library: found, loaded, its functions declared. csrc/frontend/exports.cpp has them.

Loaded through ctypes and with Python's lock held: a call is short, and giving the lock away for it could cost
the event loop a whole switch interval.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_ubyte, c_void_p
from functools import cache
from pathlib import Path

LIBRARY = Path(__file__).parent / "_lib" / "libsplitserve_frontend.so"
# Given a token id; calls splitserve_pieces_set for it.
FillPiece = ctypes.PYFUNCTYPE(None, c_int32)


class HeldBytes(ctypes.Structure):
    """Mirror of HeldBytes in csrc/frontend/json_text.h."""

    _fields_ = (("data", c_ubyte * 3), ("size", c_ubyte))


class StreamSpec(ctypes.Structure):
    """Mirror of StreamSpec in csrc/frontend/relay.h."""

    _fields_ = (
        ("handle", c_int64),
        ("bounds", c_void_p),
        ("num_bounds", c_int64),
        ("counts", c_void_p),
        ("sum", c_void_p),
        ("pieces", c_void_p),
        ("frame", c_char_p),
        ("token_ids", c_void_p),
        ("last_token_s", c_double),
        ("prefix_size", c_int32),
        ("suffix_size", c_int32),
        ("num_token_ids", c_int32),
        ("num_taken", c_int32),
        ("fd", c_int32),
        ("replace_each_byte", c_int32),
        ("held", HeldBytes),
    )


class StreamOutcome(ctypes.Structure):
    """Mirror of StreamOutcome in csrc/frontend/relay.h."""

    _fields_ = (
        ("token_ids", c_void_p),
        ("unsent", c_void_p),
        ("last_token_s", c_double),
        ("last_write_s", c_double),
        ("num_body_bytes", c_int64),
        ("num_token_ids", c_int32),
        ("num_taken", c_int32),
        ("num_unsent", c_int32),
        ("held", HeldBytes),
    )


class RelayReport(ctypes.Structure):
    """Mirror of RelayReport in csrc/frontend/relay.h."""

    _fields_ = (
        ("left_rows", POINTER(c_int32)),
        ("blocked", POINTER(c_int64)),
        ("num_left_rows", c_int32),
        ("num_blocked", c_int32),
    )


_SIGNATURES = {
    "pieces_new": (c_void_p, (c_int32, FillPiece)),
    "pieces_set": (None, (c_void_p, c_int32, c_char_p, c_int32)),
    "pieces_delete": (None, (c_void_p,)),
    "relay_new": (c_void_p, ()),
    "relay_delete": (None, (c_void_p,)),
    "relay_report": (POINTER(RelayReport), (c_void_p,)),
    "relay_attach": (None, (c_void_p, POINTER(StreamSpec))),
    "relay_add": (c_int32, (c_void_p, c_char_p, c_char_p, c_char_p, c_int32)),
    "relay_flush": (c_int32, (c_void_p, c_double, c_int32)),
    "relay_detach": (POINTER(StreamOutcome), (c_void_p, c_int64)),
    "relay_last_write_s": (c_double, (c_void_p, c_int64)),
}


@cache
def load_library() -> ctypes.PyDLL:
    """Load the library, once.

    Raises:
        ImportError: it was not built.
    """
    if not LIBRARY.is_file():
        raise ImportError(f"{LIBRARY} is missing: build it with `python setup.py build_ext --inplace`")
    library = ctypes.PyDLL(str(LIBRARY))
    for name, (result, arguments) in _SIGNATURES.items():
        function = library[f"splitserve_{name}"]
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library

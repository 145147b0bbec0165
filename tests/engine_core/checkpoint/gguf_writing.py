"""Writes GGUF files byte by byte, right and wrong ones."""

from __future__ import annotations

import struct
from typing import NamedTuple

ALIGNMENT = 32
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9
Value = bool | int | float | str | list[str] | list[int] | list[float]


class Tensor(NamedTuple):
    """A tensor: number of its type, sizes with the fastest first, its bytes, and where they are."""

    kind: int
    sizes: list[int]
    data: bytes
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    """A text behind its length."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value_bytes(value: Value) -> bytes:
    """A value behind its type."""
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + text(value)
        case _:
            kind = {str: _STRING, int: _UINT32, float: _FLOAT32}[type(value[0]) if value else int]
            items = b"".join(value_bytes(item)[4:] for item in value)
            return struct.pack("<IIQ", _ARRAY, kind, len(value)) + items


def file_bytes(metadata: dict[str, Value], tensors: dict[str, Tensor], version: int = 3) -> bytes:
    """Return the bytes of a file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value_bytes(value) for key, value in metadata.items())
    data = b""
    for name, tensor in tensors.items():
        offset = len(data) if tensor.offset is None else tensor.offset
        head += text(name) + struct.pack(f"<I{len(tensor.sizes)}Q", len(tensor.sizes), *tensor.sizes)
        head += struct.pack("<IQ", tensor.kind, offset)
        data += tensor.data + bytes(-len(tensor.data) % ALIGNMENT)
    return head + bytes(-len(head) % ALIGNMENT) + data


def llama(**changes: Value) -> dict[str, Value]:
    """Metadata of a small Llama with a tokenizer; changes have _ for dots after "llama"."""
    tokens = ["<s>", "</s>", "a", "b", "ab", "<|im_end|>"]
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 16,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    return {**metadata, **changes}


def embedding() -> dict[str, Tensor]:
    """The one tensor that a config needs."""
    return {"token_embd.weight": Tensor(0, [16, 6], bytes(16 * 6 * 4))}

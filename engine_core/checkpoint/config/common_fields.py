"""Which fields of config.json mean the same in every architecture, and which sizes are accepted."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.field_files import read_fields
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.contents import explain
from splitserve.engine_core.checkpoint.gguf.gguf_file import is_gguf
from splitserve.engine_core.checkpoint.weight_files import stored_dtype
from splitserve.engine_core.errors import ModelLoadError

MAX_LAYERS = 1024
MAX_HEADS = 4096
MAX_HEAD_DIM = 256
MAX_WIDTH = 2**20
MAX_VOCAB = 2**24
# Four times the longest published context; the rotary table has this many rows.
MAX_LEN = 2**22
# Above any logit: caps of 30 and 50 have been published.
MAX_CAP = 1e6
DTYPES = ("float32", "bfloat16", "float16")


def open_config(directory: Path) -> Fields:
    """Return the fields of config.json.

    Raises:
        ModelLoadError: it is missing (the message says what is there instead), or is not a JSON object.
    """
    path = directory / "config.json"
    if is_gguf(directory):
        return read_fields(path)
    if not directory.is_dir():
        raise ModelLoadError(f"{directory} is neither a directory nor a GGUF file")
    if not path.exists():
        raise ModelLoadError(f"{path} does not exist: {explain(directory)}")
    return read_fields(path)


def read_dtype(path: Path, config: Fields) -> str:
    """Return the dtype that config.json names, or else that of most of the weights, or "" without weights.

    Raises:
        ModelLoadError: it is none of DTYPES, or the weight files are damaged.
    """
    name = config.text("dtype", config.text("torch_dtype", "")).removeprefix("torch.")
    name = name or stored_dtype(path)
    if name not in ("", *DTYPES):
        raise config.error("dtype", f"must be one of {', '.join(DTYPES)}, got {name!r}")
    return name


def read_eos_token_ids(path: Path, config: Fields) -> tuple[int, ...]:
    """Return the ids of generation_config.json, where chat models name theirs, or else of config.json.

    Raises:
        ModelLoadError: one is not an integer.
    """
    generation_path = path / "generation_config.json"
    if generation_path.exists():
        generation = read_fields(generation_path)
        if generation.has("eos_token_id"):
            return generation.token_ids("eos_token_id")
    return config.token_ids("eos_token_id")


def check_head_dim(config: Fields, head_dim: int) -> int:
    """Return the size of a head if the attention kernels support it.

    Raises:
        ModelLoadError: it is not a multiple of 8, or above MAX_HEAD_DIM.
    """
    if head_dim % 8 or head_dim > MAX_HEAD_DIM:
        raise config.error("head_dim", f"must be a multiple of 8 up to {MAX_HEAD_DIM}, got {head_dim}")
    return head_dim

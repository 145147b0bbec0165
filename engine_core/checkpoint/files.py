"""How a checkpoint's small files are read as untrusted input: of limited size, and named in errors."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from splitserve.engine_core.checkpoint.gguf.made_files import made_file
from splitserve.engine_core.checkpoint.lfs import refuse_pointer
from splitserve.engine_core.errors import ModelLoadError

# The largest tokenizer.json in use is 34 MB; the library holds the interpreter lock for 0.1 s per MB.
MAX_FILE_BYTES = 64 * 2**20


def read_file(path: Path, max_bytes: int = 0) -> bytes | None:
    """Read a whole file; return None if there is none.

    Args:
        path: of the file; "in" a GGUF file it is one that is made from its metadata.
        max_bytes: maximum size; 0 means 64 MiB.

    Raises:
        ModelLoadError: it cannot be read, is a pipe or device, is a Git LFS pointer, or is too large.
    """
    limit = max_bytes or MAX_FILE_BYTES
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ModelLoadError(f"{path} is not a regular file")
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return made_file(path.parent, path.name)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from None
    if len(data) > limit:
        raise ModelLoadError(f"{path} is larger than the limit of {limit} bytes")
    refuse_pointer(path, data)
    return data


def _open_at_once(path: str, flags: int) -> int:
    # Opening a pipe would block.
    return os.open(path, flags | os.O_NONBLOCK)


def read_text(path: Path) -> str | None:
    """Read a UTF-8 text; return None if there is no such file.

    Raises:
        ModelLoadError: as read_file(), or it is not UTF-8.
    """
    data = read_file(path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from None


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object; return {} if there is no such file.

    Raises:
        ModelLoadError: as read_file(), or it contains something else.
    """
    data = read_file(path)
    if data is None:
        return {}
    try:
        value = json.loads(data)
        if b"\\u" in data or not data.isascii():
            # Half of a surrogate pair is a character to the decoder, but can be neither sent nor written.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"cannot read {path}: it is not a JSON object")
    return value

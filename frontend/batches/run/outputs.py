"""The answers of a batch become its files: what was answered, and what failed."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from splitserve.frontend.batches.store.batches import StoredBatches
from splitserve.frontend.batches.store.files import PIECE_BYTES, StoredFiles
from splitserve.frontend.batches.store.tables import Key

_READ_ANSWERS = 256


class Outputs(NamedTuple):
    """The files of a batch, which are shown once the batch says that it has ended; None for an empty one."""

    output: Key | None
    error: Key | None


async def write_outputs(files: StoredFiles, batches: StoredBatches, key: Key) -> Outputs:
    """Write both files of a batch, with ids of their own: what was left by a process that died expires.

    Args:
        files: of the store.
        batches: of the store.
        key: of the batch.
    """
    output = await _write(files, batches, key, failed=False)
    return Outputs(output, await _write(files, batches, key, failed=True))


async def _write(files: StoredFiles, batches: StoredBatches, key: Key, *, failed: bool) -> Key | None:
    file_key = Key(key.tenant, f"file-{uuid.uuid4().hex}")
    name = f"{key.id}_{'error' if failed else 'output'}.jsonl"
    after, number, held = 0, 0, b""
    while found := await batches.answers(key, failed=failed, after=after, limit=_READ_ANSWERS):
        if not after:
            await files.begin(file_key, "batch_output", name)
        after = found[-1].line
        held += b"".join(each.data for each in found)
        while len(held) >= PIECE_BYTES:
            await files.append(file_key, number, held[:PIECE_BYTES])
            held, number = held[PIECE_BYTES:], number + 1
    if held:
        await files.append(file_key, number, held)
    return file_key if after else None

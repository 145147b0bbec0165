"""Which workers may a successor of this engine take over? A small file beside their socket.

It is written when the workers are started, and replaced as a whole, so it is never seen half written. What it
says is checked before it is believed: other pids, another boot, software or checkpoint make it worthless, and
workers that hold nothing yet do not answer.
"""

from __future__ import annotations

import contextlib
import os
from hashlib import sha256

import msgspec

from splitserve.engine_core.checkpoint.state import file_states
from splitserve.engine_core.kept.processes import ProcessName

_MAX_BYTES = 2**16


class GroupRecord(msgspec.Struct, frozen=True):
    """The workers of one engine.

    Attributes:
        fingerprint: of everything that decides what they hold; see fingerprint().
        workers: by rank.
        ledger_fd: their descriptor of the ledger of their KV cache, the same in all of them.
        starter_pid: of the engine that started them, which names the socket that they connect to.
    """

    fingerprint: str
    workers: list[ProcessName]
    ledger_fd: int = -1
    starter_pid: int = 0


def write_record(path: str, record: GroupRecord) -> None:
    """Replace the record.

    Raises:
        OSError: it cannot be written.
    """
    new = f"{path}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.encode(record))
    os.replace(new, path)


def read_record(path: str) -> GroupRecord | None:
    """Return the record; None if there is none, or what is there is not one."""
    # msgspec's errors are ValueErrors, except that for too deep a nesting.
    with contextlib.suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
        return msgspec.json.decode(file.read(_MAX_BYTES), type=GroupRecord)
    return None


def fingerprint(told: msgspec.Struct, model: str, *versions: str) -> str:
    """Return what two engines have in common exactly if the workers of one serve the other.

    Args:
        told: everything that workers are told, and what decides the size of their KV cache.
        model: directory of the checkpoint; its files count by name, size, time and number.
        versions: of the software, for example.
    """
    parts = (msgspec.json.encode(told), msgspec.json.encode([model, file_states(model), *versions]))
    return sha256(b"\n".join(parts)).hexdigest()

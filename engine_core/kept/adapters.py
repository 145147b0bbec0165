"""Which adapters does an engine's successor at the same address have to know? A small file, one per address.

The engine writes it when its list of adapters changes, and removes it when it ends in good order and nobody
takes its place. What it says is checked before it is believed.
"""

from __future__ import annotations

import contextlib
import os
from hashlib import sha256

import msgspec

from splitserve.engine_core.ipc.addresses import ipc_path, is_ipc, make_private_directory
from splitserve.engine_core.ipc.wire import AdapterInfo
from splitserve.engine_core.process.runtime_directory import leave_runtime_directory, runtime_directory

# Of 1000 adapters with the longest names and paths.
_MAX_BYTES = 2**23


class KeptAdapters:
    """The file of one engine; owned by the busy loop's thread.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def of(cls, address: str) -> KeptAdapters | None:
        """Return that of the engine which listens on an address: beside its socket, if that is a file.

        None if a successor cannot have the address, as at a port that the system chooses.
        """
        if is_ipc(address):
            return cls(f"{os.path.abspath(ipc_path(address))}.adapters")
        if address.endswith((":0", ":*")):
            return None
        return cls(f"{runtime_directory()}/adapters-{sha256(address.encode()).hexdigest()[:12]}")

    def read(self) -> list[AdapterInfo]:
        """Return what the predecessor knew; nothing if it left nothing, or what it left is damaged."""
        # msgspec's errors are ValueErrors, except that for too deep a nesting.
        with contextlib.suppress(OSError, ValueError, RecursionError), open(self._path, "rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=list[AdapterInfo])
        return []

    def write(self, adapters: list[AdapterInfo]) -> None:
        """Replace what the file says, as a whole; without adapters there is none.

        Raises:
            OSError: it cannot be written.
            ConfigError: its directory is not private.
        """
        if not adapters:
            self.remove()
            return
        if os.path.dirname(self._path) == runtime_directory():
            make_private_directory(runtime_directory())
        new = f"{self._path}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(adapters))
        os.replace(new, self._path)

    def remove(self) -> None:
        """Leave nothing behind; never fails."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        leave_runtime_directory(self._path)

"""Where the sockets of a user's servers are by default."""

from __future__ import annotations

import contextlib
import os

from splitserve.engine_core.process.server_record import remove_orphan


def runtime_directory() -> str:
    """Return the default directory of this user's sockets: private to the user, gone after a reboot."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    # In shells opened with su or sudo the variable may name a directory that no longer exists.
    return os.path.join(base, "splitserve") if os.path.isdir(base) else f"/tmp/splitserve-{os.getuid()}"


def leave_runtime_directory(directory: str) -> None:
    """Remove a directory of sockets below the runtime directory, and then the runtime directory, if empty.

    The last process of a server to end finds them empty, however the others have ended.

    Args:
        directory: of this process's sockets; ignored if it is not below the runtime directory.
    """
    runtime = runtime_directory()
    if os.path.dirname(directory) == runtime:
        remove_orphan(directory)
        with contextlib.suppress(OSError):
            os.rmdir(directory)
        with contextlib.suppress(OSError):
            os.rmdir(runtime)


def default_engine_address() -> str:
    """Return the address an engine-core listens on, and an api-frontend looks for, when none is given."""
    return f"ipc://{runtime_directory()}/engine.sock"

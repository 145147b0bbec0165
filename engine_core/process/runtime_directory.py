"""Where the sockets of a user's servers are by default."""

from __future__ import annotations

import contextlib
import glob
import os

from splitserve.engine_core.process.server_record import NAME, remove_orphan

# Of the path of a Unix socket, without its terminating 0.
_MAX_PATH_BYTES = 107
# Of our longest paths below: /workers-, 12 digits, /XXXX; or /serve-, 7 digits, /engine.sock.
_LONGEST_NAME_BYTES = 26


def runtime_directory() -> str:
    """Return the default directory of this user's sockets: private to the user, gone after a reboot."""
    own = os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "splitserve")
    # In shells opened with su or sudo the variable may name a directory that no longer exists.
    is_usable = (
        os.path.isdir(os.path.dirname(own)) and len(os.fsencode(own)) + _LONGEST_NAME_BYTES <= _MAX_PATH_BYTES
    )
    return own if is_usable else f"/tmp/splitserve-{os.getuid()}"


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


def remove_orphans() -> None:
    """Remove what servers of this user left that were killed together with all of their processes."""
    for record in glob.glob(f"{glob.escape(runtime_directory())}/serve-*/{NAME}"):
        leave_runtime_directory(os.path.dirname(record))


def default_engine_address() -> str:
    """Return the address an engine-core listens on, and an api-frontend looks for, when none is given."""
    return f"ipc://{runtime_directory()}/engine.sock"

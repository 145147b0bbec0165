"""Where the sockets of a user's servers live when nothing else is said."""

from __future__ import annotations

import contextlib
import os


def runtime_directory() -> str:
    """Return where this user's sockets live by default: private to the user, gone after a reboot."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    # The variable outlives its directory in shells opened with su or sudo.
    return os.path.join(base, "splitserve") if os.path.isdir(base) else f"/tmp/splitserve-{os.getuid()}"


def leave_runtime_directory(directory: str) -> None:
    """Remove a directory of sockets below the runtime directory and then that one, whichever is empty by now.

    Whoever of a server ends last finds them empty, however the others have ended.

    Args:
        directory: of this process's sockets; one elsewhere is left alone.
    """
    runtime = runtime_directory()
    if os.path.dirname(directory) == runtime:
        with contextlib.suppress(OSError):
            os.rmdir(directory)
        with contextlib.suppress(OSError):
            os.rmdir(runtime)


def default_engine_address() -> str:
    """Return the address an engine-core listens on, and an api-frontend looks for, when none is given."""
    return f"ipc://{runtime_directory()}/engine.sock"

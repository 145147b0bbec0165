"""Where may an adapter lie that is named over HTTP? Below the folder that the operator has opened for it."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.errors import InvalidRequestError


def place_below(folder: str, path: str) -> str:
    """Return the directory that a path names, after all links.

    Args:
        folder: of --lora-dir; "" if it was not given.
        path: relative to the folder, or absolute.

    Raises:
        InvalidRequestError: status 403, there is no such folder, or the path leads out of it.
    """
    if not folder:
        error = InvalidRequestError(
            "adapters cannot be loaded or unloaded here: the server was started without --lora-dir",
            "lora_path",
            "adapters_fixed",
        )
        error.status = 403
        raise error
    try:
        allowed = Path(folder).resolve()
        found = (allowed / path).resolve()
    except (OSError, ValueError, RuntimeError):
        raise InvalidRequestError("lora_path is no path", "lora_path") from None
    if not found.is_relative_to(allowed):
        error = InvalidRequestError("lora_path leads out of the folder of --lora-dir", "lora_path")
        error.status = 403
        raise error
    return str(found)

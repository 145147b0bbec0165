"""How many descriptors this process may have open."""

from __future__ import annotations

import contextlib
import resource


def raise_file_limit() -> int:
    """Raise the limit of open descriptors to the maximum for this user; every connection takes one.

    Returns:
        The new limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

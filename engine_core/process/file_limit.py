"""How many descriptors this process may have open."""

from __future__ import annotations

import contextlib
import resource


def raise_file_limit() -> int:
    """Allow as many descriptors as the system lets this user have; every connection takes one.

    Returns:
        How many may be open now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

"""The version of this software, as reported by --version and in every hello."""

from __future__ import annotations

from functools import cache


@cache
def software_version() -> str:
    """Return the version of the installed distribution, "0+unknown" when run from a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("splitserve")
    except PackageNotFoundError:
        return "0+unknown"

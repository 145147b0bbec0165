"""Which database does --response-store name, and can it be used?"""

from __future__ import annotations

import importlib
import os
import re

from splitserve.engine_core.errors import ConfigError
from splitserve.frontend.response_store.rows import Database

FLAG = "--response-store"
NONE = "none"
# Beginning of a URL -> what it is in SQLAlchemy's words, and the module that has to be installed.
_SQL = {
    "postgresql://": ("postgresql+psycopg://", "psycopg"),
    "postgres://": ("postgresql+psycopg://", "psycopg"),
    "postgresql+psycopg://": ("postgresql+psycopg://", "psycopg"),
    "sqlite:///": ("sqlite:///", "sqlite3"),
}
_REDIS = ("redis://", "rediss://", "unix://")
_EXTRA = "pip install 'splitserve[response-store]'"


def is_store(place: str) -> bool:
    """Return whether a value of the flag names a store."""
    return place.lower() not in ("", NONE)


def shown_place(place: str) -> str:
    """Return a place without the password in it."""
    return re.sub(r"(?<=//)([^/@:]*):[^@]*@", r"\1:***@", place)


def check_place(place: str, made_later: str = "") -> None:
    """Check a value of the flag: its form, that what it needs is installed, and the folder of a file.

    Args:
        place: the value.
        made_later: a folder that need not be there yet.

    Raises:
        ConfigError: names the flag.
    """
    if not is_store(place):
        return
    url, module = _resolve(place)
    try:
        importlib.import_module("redis.asyncio" if module == "redis" else module)
    except ImportError as error:
        raise ConfigError(
            f"{FLAG} {shown_place(place)} needs a library that is not installed ({error}): {_EXTRA}"
        ) from None
    if url.startswith("sqlite:///"):
        _check_file(url.removeprefix("sqlite:///"), made_later)
    else:
        open_database(place)


def open_database(place: str) -> Database:
    """Return the database that a place names; it connects when it is first used.

    Raises:
        ConfigError: the place is no such URL; names the flag.
    """
    url, module = _resolve(place)
    try:
        if module == "redis":
            from splitserve.frontend.response_store.redis_rows import RedisDatabase

            return RedisDatabase(url)
        from splitserve.frontend.response_store.sql import SqlDatabase

        return SqlDatabase(url)
    except (ValueError, TypeError, ArithmeticError, KeyError) as error:
        raise ConfigError(f"{FLAG} {shown_place(place)} cannot be used: {error}") from None


def _resolve(place: str) -> tuple[str, str]:
    """Return the URL that a library takes, and the module that has to be installed."""
    for begin, (url, module) in _SQL.items():
        if place.startswith(begin):
            return url + place.removeprefix(begin), module
    if place.startswith(_REDIS):
        return place, "redis"
    if "://" in place:
        raise ConfigError(
            f"{FLAG} must be the path of an SQLite file, postgresql://..., redis://... or {NONE}, "
            f"got {shown_place(place)!r}"
        )
    return f"sqlite:///{place}", "sqlite3"


def _check_file(path: str, made_later: str) -> None:
    if not path or "?" in path:
        raise ConfigError(f"{FLAG} must name an SQLite file, without a question mark, got {path!r}")
    if os.path.isdir(path):
        raise ConfigError(f"{FLAG} {path} is a directory")
    directory = os.path.dirname(os.path.abspath(path))
    if directory == made_later:
        return
    if not os.path.isdir(directory):
        raise ConfigError(f"{FLAG} {path}: the directory {directory} does not exist")
    place = path if os.path.exists(path) else directory
    if not os.access(place, os.R_OK | os.W_OK):
        raise ConfigError(f"{FLAG} {path}: {place} is not writable")

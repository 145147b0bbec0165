"""The places that flags name: an SQLite file, the URL of a server, or none."""

from __future__ import annotations

import importlib
import os
import re
from typing import NamedTuple

from splitserve.engine_core.errors import ConfigError

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


class Place(NamedTuple):
    """Where a database is.

    Attributes:
        flag: that names it.
        url: as the library has it that connects to it.
        module: that has to be installed.
        shown: what was said, without the password in it.
    """

    flag: str
    url: str
    module: str
    shown: str

    @property
    def is_redis(self) -> bool:
        """Whether it is no SQL database."""
        return self.module == "redis"

    @property
    def is_file(self) -> bool:
        """Whether it is an SQLite file."""
        return self.module == "sqlite3"

    def cannot_be_used(self, error: Exception) -> ConfigError:
        """Make the error for a URL that the library does not take."""
        return ConfigError(f"{self.flag} {self.shown} cannot be used: {error}")


def is_named(place: str) -> bool:
    """Return whether a value names a database."""
    return place.lower() not in ("", NONE)


def shown_place(place: str) -> str:
    """Return a place without the password in it."""
    return re.sub(r"(?<=//)([^/@:]*):[^@]*@", r"\1:***@", place)


def resolve(flag: str, place: str, *, with_redis: bool) -> Place:
    """Return the place that a value names.

    Args:
        flag: that has the value.
        place: the value, for which is_named() is true.
        with_redis: whether it may be a server of Redis.

    Raises:
        ConfigError: it is none; names the flag.
    """
    shown = shown_place(place)
    for begin, (url, module) in _SQL.items():
        if place.startswith(begin):
            return Place(flag, url + place.removeprefix(begin), module, shown)
    if with_redis and place.startswith(_REDIS):
        return Place(flag, place, "redis", shown)
    if "://" in place:
        kinds = "postgresql://..., redis://... or" if with_redis else "postgresql://... or"
        raise ConfigError(f"{flag} must be the path of an SQLite file, {kinds} {NONE}, got {shown!r}")
    return Place(flag, f"sqlite:///{place}", "sqlite3", shown)


def check(place: Place, made_later: str = "") -> None:
    """Check that what a place needs is installed, and the folder of a file.

    Args:
        place: of the flag.
        made_later: a folder that need not be there yet.

    Raises:
        ConfigError: names the flag.
    """
    try:
        importlib.import_module("redis.asyncio" if place.is_redis else place.module)
    except ImportError as error:
        raise ConfigError(
            f"{place.flag} {place.shown} needs a library that is not installed ({error}): {_EXTRA}"
        ) from None
    if place.is_file:
        _check_file(place.flag, place.url.removeprefix("sqlite:///"), made_later)


def _check_file(flag: str, path: str, made_later: str) -> None:
    if not path or "?" in path:
        raise ConfigError(f"{flag} must name an SQLite file, without a question mark, got {path!r}")
    if os.path.isdir(path):
        raise ConfigError(f"{flag} {path} is a directory")
    directory = os.path.dirname(os.path.abspath(path))
    if directory == made_later:
        return
    if not os.path.isdir(directory):
        raise ConfigError(f"{flag} {path}: the directory {directory} does not exist")
    place = path if os.path.exists(path) else directory
    if not os.access(place, os.R_OK | os.W_OK):
        raise ConfigError(f"{flag} {path}: {place} is not writable")

"""Which database does --response-store name, and can it be used?"""

from __future__ import annotations

from splitserve.frontend.database.place import check, is_named, resolve
from splitserve.frontend.response_store.rows import Database

FLAG = "--response-store"


def check_place(place: str, made_later: str = "") -> None:
    """Check a value of the flag: its form, that what it needs is installed, and the folder of a file.

    Args:
        place: the value.
        made_later: a folder that need not be there yet.

    Raises:
        ConfigError: names the flag.
    """
    if not is_named(place):
        return
    found = resolve(FLAG, place, with_redis=True)
    check(found, made_later)
    if not found.is_file:
        open_database(place)


def open_database(place: str) -> Database:
    """Return the database that a place names; it connects when it is first used.

    Raises:
        ConfigError: the place is no such URL; names the flag.
    """
    found = resolve(FLAG, place, with_redis=True)
    try:
        if found.is_redis:
            from splitserve.frontend.response_store.redis_rows import RedisDatabase

            return RedisDatabase(found.url)
        from splitserve.frontend.response_store.sql import SqlDatabase

        return SqlDatabase(found.url)
    except (ValueError, TypeError, ArithmeticError, KeyError) as error:
        raise found.cannot_be_used(error) from None

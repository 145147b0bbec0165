"""Which database does --file-store name, and can it be used?"""

from __future__ import annotations

from splitserve.frontend.database.place import Place, check, is_named, resolve

FLAG = "--file-store"


def file_store_place(place: str) -> Place:
    """Return the place that a value of the flag names.

    Raises:
        ConfigError: it is none; names the flag.
    """
    return resolve(FLAG, place, with_redis=False)


def check_file_store(place: str, made_later: str = "") -> None:
    """Check a value of the flag: its form, that what it needs is installed, and the folder of a file.

    Args:
        place: the value.
        made_later: a folder that need not be there yet.

    Raises:
        ConfigError: names the flag.
    """
    if not is_named(place):
        return
    found = file_store_place(place)
    check(found, made_later)
    if not found.is_file:
        from splitserve.frontend.batches.store.connection import StoreConnection

        StoreConnection(found)

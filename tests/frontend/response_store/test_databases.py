"""What each kind of database has to do, on SQLite and on servers where there are any."""

from __future__ import annotations

import asyncio
import secrets
import stat
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from splitserve.frontend.response_store.errors import StoreUnavailableError
from splitserve.frontend.response_store.place import open_database
from splitserve.frontend.response_store.rows import Database, Events, Row, RowKey

# Servers expire rows by their own clock.
NOW = time.time()
# Redis has a clock of its own, and the suite may take an hour to come here.
LATER = int(NOW) + 100_000


@pytest.fixture
async def pair(place: str) -> AsyncGenerator[tuple[Database, Database], None]:
    """The same database as two processes see it; what earlier tests left in it is deleted."""
    first, second = open_database(place), open_database(place)
    await first.tidy(NOW + 10**9, 0)
    await first.tidy(NOW, -(10**9))
    yield first, second
    await first.close()
    await second.close()


@pytest.fixture
def database(pair: tuple[Database, Database]) -> Database:
    return pair[0]


def row(name: str = "resp_a", **changes: object) -> Row:
    found = Row(RowKey("t", name), NOW, LATER, "", name.encode())
    return found._replace(**changes)  # type: ignore[arg-type]


async def names(database: Database, *candidates: str) -> list[str]:
    """Those of the rows that are there."""
    return [name for name in candidates if await database.get(RowKey("t", name), NOW) is not None]


async def test_a_row_is_read_as_it_was_written(pair: tuple[Database, Database]) -> None:
    first, second = pair
    written = row(data=bytes(range(256)) * 1000)
    await first.put(written)
    assert await second.get(written.key, NOW) == written
    await second.put(row(data=b"other"))
    assert await first.get(written.key, NOW) == row(data=b"other")


async def test_rows_of_other_tenants_are_others(database: Database) -> None:
    keys = [
        RowKey("", "resp_a"),
        RowKey("a", "resp_a"),
        RowKey("a:resp_b", "resp_a"),
        RowKey("a", "resp_b:resp_a"),
    ]
    for i, key in enumerate(keys):
        await database.put(row(key=key, data=b"%d" % i))
    found = [await database.get(key, NOW) for key in keys]
    assert [each and each.data for each in found] == [b"0", b"1", b"2", b"3"]


async def test_what_is_deleted_is_gone(pair: tuple[Database, Database]) -> None:
    first, second = pair
    await first.put(row())
    assert await second.delete(row().key, NOW)
    assert await first.get(row().key, NOW) is None
    assert not await first.delete(row().key, NOW)


async def test_what_has_expired_is_not_there(database: Database) -> None:
    await database.put(row("resp_old", expires_s=int(NOW)))
    await database.put(row("resp_new"))
    assert await names(database, "resp_old", "resp_new") == ["resp_new"]
    assert not await database.delete(row("resp_old").key, NOW)
    assert await database.tidy(NOW, 2**40) == 0
    assert await names(database, "resp_old", "resp_new") == ["resp_new"]


async def test_a_row_is_added_unless_somebody_works_on_it(pair: tuple[Database, Database]) -> None:
    first, second = pair
    await first.put(row())
    assert await first.add(row(owner="one", data=b"1"))
    assert not await second.add(row(owner="two", data=b"2"))
    assert await second.get(row().key, NOW) == row(owner="one", data=b"1")


async def test_only_the_owner_s_row_is_replaced(pair: tuple[Database, Database]) -> None:
    first, second = pair
    assert not await first.replace(row(), "one")
    await first.add(row(owner="one"))
    assert not await second.replace(row(data=b"2"), "two")
    assert await second.replace(row(data=b"3"), "one")
    assert not await first.replace(row(data=b"4"), "one")
    assert await first.get(row().key, NOW) == row(data=b"3")


async def test_one_of_many_that_end_a_row_at_once_does_so(pair: tuple[Database, Database]) -> None:
    await pair[0].add(row(owner="one"))
    tries = [pair[i % 2].replace(row(data=b"%d" % i), "one") for i in range(20)]
    done = await asyncio.gather(*tries)
    assert sum(done) == 1
    assert await pair[0].get(row().key, NOW) == row(data=b"%d" % done.index(True))


async def test_the_owner_hears_which_rows_it_still_has(pair: tuple[Database, Database]) -> None:
    first, second = pair
    owner = secrets.token_hex(16)
    assert await first.renew(owner, NOW, 30.0) == set()
    for name in ("resp_a", "resp_b", "resp_c", "resp_d"):
        await first.add(row(name, owner=owner))
    await second.replace(row("resp_a"), owner)
    await second.delete(row("resp_b").key, NOW)
    await second.put(row("resp_c"))
    assert await first.renew(owner, NOW, 30.0) == {row("resp_d").key}


def pieces(*numbers: tuple[int, int]) -> list[Events]:
    return [Events(first, last, b"%d:%d" % (first, last)) for first, last in numbers]


async def test_events_stand_beside_their_row(pair: tuple[Database, Database]) -> None:
    first, second = pair
    await first.add(row(owner="one"))
    appended = pieces((0, 1), (2, 9), (10, 10))
    for each in appended:
        assert await first.append(row().key, "one", each)
    assert not await second.append(row().key, "two", Events(11, 12, b""))
    assert await second.events(row().key, -1) == appended
    assert await second.events(row().key, 1) == appended[1:]
    assert await second.events(row().key, 2) == appended[1:]
    assert await second.events(row().key, 10) == []
    await first.replace(row(), "one")
    assert await second.events(row().key, -1) == appended
    assert not await first.append(row().key, "one", Events(11, 12, b""))


async def test_events_may_be_appended_again_with_more_of_them(database: Database) -> None:
    await database.add(row(owner="one"))
    await database.append(row().key, "one", Events(0, 1, b"ab"))
    await database.append(row().key, "one", Events(0, 2, b"abc"))
    assert (await database.events(row().key, 1))[-1] == Events(0, 2, b"abc")


@pytest.mark.parametrize("how", ["put", "delete", "expire", "evict"])
async def test_events_go_with_their_row(database: Database, how: str) -> None:
    await database.add(row(owner="one"))
    await database.append(row().key, "one", pieces((0, 1))[0])
    if how == "put":
        await database.put(row())
    elif how == "delete":
        await database.delete(row().key, NOW)
    elif how == "expire":
        await database.tidy(LATER + 1, 2**40)
    else:
        assert await database.tidy(NOW, 0) == 1
    assert await database.events(row().key, -1) == []


async def test_events_count_for_the_size(database: Database) -> None:
    await database.add(row(owner="one", data=b"x" * 10))
    await database.append(row().key, "one", Events(0, 1, b"y" * 90))
    await database.replace(row(data=b"x" * 10), "one")
    assert await database.tidy(NOW, 110) == 0
    assert await database.tidy(NOW, 99) == 1


async def test_a_lease_ends(place: str, database: Database) -> None:
    owner = secrets.token_hex(16)
    assert not await database.is_alive(owner, NOW)
    if place.startswith("unix:"):
        # Redis ends leases by its own clock.
        await database.renew(owner, NOW, 1000.0)
        assert await database.is_alive(owner, NOW)
        await database.renew(owner, NOW, 0.01)
        while await database.is_alive(owner, NOW):
            await asyncio.sleep(0.01)
        return
    await database.renew(owner, NOW, 10.0)
    assert await database.is_alive(owner, NOW + 9)
    assert not await database.is_alive(owner, NOW + 11)


async def test_the_oldest_rows_make_room(database: Database) -> None:
    for i in range(100):
        await database.put(row(f"resp_{i}", created_s=NOW + (i * 37) % 100, data=b"x" * 10))
    assert await database.tidy(NOW, 155) == 85
    by_age = sorted(range(100), key=lambda i: (i * 37) % 100)
    left = await names(database, *(f"resp_{i}" for i in by_age))
    assert left == [f"resp_{i}" for i in by_age[85:]]
    assert await database.tidy(NOW, 155) == 0


async def test_a_row_that_is_worked_on_is_not_evicted(database: Database) -> None:
    owner = secrets.token_hex(16)
    await database.renew(owner, time.time(), 30.0)
    await database.add(row("resp_owned", owner=owner, created_s=NOW - 9))
    await database.add(row("resp_orphan", owner=secrets.token_hex(16), created_s=NOW - 8))
    await database.put(row("resp_done"))
    assert await database.tidy(time.time(), 0) == 2
    assert await names(database, "resp_owned", "resp_orphan", "resp_done") == ["resp_owned"]


async def test_many_write_at_once(pair: tuple[Database, Database]) -> None:
    rows = [row(f"resp_{i}") for i in range(100)]
    await asyncio.gather(*(pair[i % 2].put(each) for i, each in enumerate(rows)))
    assert len(await names(pair[0], *(each.key.id for each in rows))) == 100


async def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    database = open_database(str(path))
    await database.put(row())
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert modes == {name: 0o600 for name in ("new.db", "new.db-wal", "new.db-shm")}
    await database.close()


async def test_a_deleted_text_is_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    database = open_database(str(path))
    await database.put(row(data=b"a secret of somebody"))
    await database.delete(row().key, NOW)
    await database.close()
    assert b"a secret" not in path.read_bytes()


@pytest.mark.parametrize(
    "place", ["{}/none/a.db", "postgresql://x@/y?host={}", "redis://127.0.0.1:1/0", "unix://{}/none"]
)
async def test_a_database_that_is_not_there_is_unavailable(tmp_path: Path, place: str) -> None:
    database = open_database(place.format(tmp_path))
    with pytest.raises(StoreUnavailableError):
        await database.put(row())
    with pytest.raises(StoreUnavailableError):
        await database.get(row().key, NOW)
    await database.close()


async def test_errors_of_the_database_hold_nothing_of_the_row(tmp_path: Path) -> None:
    path = tmp_path / "bad.db"
    path.write_bytes(b"not a database" * 100)
    database = open_database(str(path))
    with pytest.raises(StoreUnavailableError) as caught:
        await database.put(row(data=b"a secret"))
    assert "secret" not in str(caught.value)
    assert "not a database" in str(caught.value)
    await database.close()

"""The store over its database: size of a record, time to live, deadlines, tidying up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random

import pytest

from splitserve.frontend.response_store import store as store_module
from splitserve.frontend.response_store.errors import RecordTooLargeError, StoreUnavailableError
from splitserve.frontend.response_store.place import open_database
from splitserve.frontend.response_store.records import Record, pack, unpack
from splitserve.frontend.response_store.rows import Row, RowKey
from splitserve.frontend.response_store.sql import SqlDatabase
from splitserve.frontend.response_store.store import ResponseStore, StoreLimits

KEY = RowKey("t", "resp_a")
LIMITS = StoreLimits(ttl_s=100, max_bytes=2**20)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Failing(SqlDatabase):
    """A database that fails, or does not answer, for as long as a test says so."""

    fails = hangs = False

    async def put(self, row: Row) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise StoreUnavailableError("broken")
        await super().put(row)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Failing, None]:
    found = Failing(f"sqlite:///{tmp_path}/responses.db")
    yield found
    await found.close()


@pytest.fixture
def store(database: Failing, clock: Clock) -> ResponseStore:
    return ResponseStore(database, LIMITS, clock)


def record(clock: Clock, response: bytes = b"{}", items: bytes = b"[]") -> Record:
    return Record(clock(), response, items)


@pytest.mark.parametrize("num_bytes", [2, 20_000])
async def test_a_record_is_returned_until_it_expires(
    store: ResponseStore, clock: Clock, num_bytes: int
) -> None:
    written = record(clock, b"x" * num_bytes, b"y" * num_bytes)
    await store.put(KEY, written)
    clock.now_s += LIMITS.ttl_s - 0.5
    assert await store.get(KEY) == written
    clock.now_s += 1
    assert await store.get(KEY) is None
    assert not await store.delete(KEY)


async def test_a_record_may_take_a_quarter_of_the_space(store: ResponseStore, clock: Clock) -> None:
    await store.put(KEY, record(clock, b"x" * (2**18 - 2)))
    with pytest.raises(RecordTooLargeError, match=r"take 262145 bytes, and at most 262144 .*store: false"):
        await store.put(KEY, record(clock, b"x" * (2**18 - 1)))
    assert not store.is_failing


async def test_an_error_is_remembered_for_a_while(
    store: ResponseStore, database: Failing, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.fails = True
    with pytest.raises(StoreUnavailableError, match="broken"):
        await store.put(KEY, record(clock))
    assert store.is_failing
    assert store.num_errors == 1
    monkeypatch.setattr(store_module, "FAILING_S", 0.0)
    assert not store.is_failing


async def test_a_database_that_does_not_answer_is_not_waited_for(
    store: ResponseStore, database: Failing, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "DEADLINE_S", 0.01)
    database.hangs = True
    with pytest.raises(StoreUnavailableError, match="no answer"):
        await store.put(KEY, record(clock))


async def test_what_is_too_much_is_deleted_while_the_store_runs(
    store: ResponseStore, database: Failing, clock: Clock
) -> None:
    class Told(ResponseStore):
        told = asyncio.Event()

        async def tidy(self) -> int:
            found = await super().tidy()
            if found:
                self.told.set()
            return found

    running = Told(database, LIMITS, clock)
    async with running.running():
        for i in range(6):
            clock.now_s += 1
            # Random bytes do not shrink.
            await running.put(RowKey("t", f"resp_{i}"), record(clock, Random(i).randbytes(200_000)))
        await asyncio.wait_for(running.told.wait(), 30)
        assert await running.get(RowKey("t", "resp_0")) is None
        assert await running.get(RowKey("t", "resp_5")) is not None


@pytest.mark.parametrize("data", [b"", b"\x02abc", b"\x01abc", pack(Record(0, b"", b""))[:-8]])
def test_data_of_another_kind_is_refused(data: bytes) -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        unpack(data)


async def test_data_of_another_version_is_an_error_of_the_store(
    store: ResponseStore, database: Failing
) -> None:
    await database.put(Row(KEY, 1000.0, 2000, "", b"\x09"))
    with pytest.raises(StoreUnavailableError):
        await store.get(KEY)


async def test_frontends_share_what_is_kept(tmp_path: Path, store: ResponseStore, clock: Clock) -> None:
    database = open_database(str(tmp_path / "responses.db"))
    await store.put(KEY, record(clock))
    assert await ResponseStore(database, LIMITS, clock).get(KEY) == record(clock)
    await database.close()

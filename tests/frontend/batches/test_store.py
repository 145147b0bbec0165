"""What each kind of database has to do for files and batches."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from splitserve.engine_core.errors import ConfigError
from splitserve.frontend.batches.place import check_file_store, file_store_place
from splitserve.frontend.batches.schema.batches import BatchObject, KeptBatch
from splitserve.frontend.batches.store.batches import LEASE_S, Answered, BatchRow
from splitserve.frontend.batches.store.connection import StoreConnection
from splitserve.frontend.batches.store.errors import FileStoreUnavailableError
from splitserve.frontend.batches.store.store import FileStore
from splitserve.frontend.batches.store.tables import Key
from splitserve.frontend.cli import main
from tests.frontend.response_store.conftest import folder, postgresql_url

__all__ = ["folder", "postgresql_url"]

TTL_S = 1000


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
async def pair(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncGenerator[tuple[FileStore, FileStore], None]:
    """The same store as two frontends see it."""
    place = str(tmp_path / "files.db")
    if request.param == "postgresql":
        place = request.getfixturevalue("postgresql_url")
    connections = [StoreConnection(file_store_place(place), clock) for _ in range(2)]
    # What earlier tests left in a server.
    clock.now_s += 10**9
    first, second = (FileStore(each, 10_000) for each in connections)
    await first.files.tidy()
    clock.now_s -= 10**9
    yield first, second
    for each in connections:
        await each.close()


async def made(store: FileStore, clock: Clock) -> BatchRow:
    """A new batch."""
    key = Key("t", f"batch_{secrets.token_hex(4)}")
    now_s = int(clock.now_s)
    batch = BatchObject(
        id=key.id,
        endpoint="/v1/completions",
        input_file_id="file-a",
        completion_window="1h",
        status="validating",
        created_at=now_s,
        expires_at=now_s + 3600,
    )
    return await store.batches.add(key, KeptBatch(batch=batch), now_s + TTL_S)


async def test_one_frontend_at_a_time_owns_a_batch(pair: tuple[FileStore, FileStore], clock: Clock) -> None:
    first, second = pair
    keys = {(await made(first, clock)).key for _ in range(20)}
    # Both at the same time; what one has locked the other leaves alone.
    claims = (store.batches.claim(owner, 16) for store, owner in ((first, "one"), (second, "two")))
    claimed = [[row.key for row in each] for each in await asyncio.gather(*claims)]
    assert len(claimed[0]) + len(claimed[1]) == len(keys) == len({*claimed[0], *claimed[1]})
    assert await second.batches.claim("three", 16) == []
    clock.now_s += LEASE_S - 1
    assert await first.batches.renew("one") == dict.fromkeys(claimed[0], False)
    clock.now_s += 2
    # The other's leases have ended.
    assert {row.key for row in await first.batches.claim("one", 16)} == set(claimed[1])
    await first.batches.release("one")
    assert len(await second.batches.claim("two", 100)) == 20


async def test_an_answer_is_kept_once_and_from_the_owner_only(
    pair: tuple[FileStore, FileStore], clock: Clock
) -> None:
    first, second = pair
    key = (await made(first, clock)).key
    await first.batches.claim("one", 1)
    answers = [Answered(1, False, b"one\n"), Answered(2, True, b"two\n")]
    assert await first.batches.answer(key, "one", answers)
    assert await first.batches.answer(
        key, "one", [Answered(2, False, b"again\n"), Answered(3, False, b"3\n")]
    )
    clock.now_s += LEASE_S + 1
    await second.batches.claim("two", 1)
    assert not await first.batches.answer(key, "one", [Answered(4, False, b"late\n")])
    assert await second.batches.answered(key) == {1, 2, 3}
    row = await second.batches.get(key)
    assert row is not None
    assert (row.num_completed, row.num_failed, row.num_answer_bytes) == (2, 1, 10)
    assert await second.files.num_bytes() == 10
    found = await second.batches.answers(key, failed=False, after=1, limit=5)
    assert found == [Answered(3, False, b"3\n")]
    assert not await first.batches.save(key, "one", row.kept)
    assert not await first.batches.end(key, "one", row.kept, [], TTL_S)


async def test_a_batch_and_its_files_end_together(pair: tuple[FileStore, FileStore], clock: Clock) -> None:
    first, second = pair
    row = await made(first, clock)
    await first.batches.claim("one", 1)
    await first.batches.answer(row.key, "one", [Answered(1, False, b"one\n")])
    output = Key("t", f"file-{secrets.token_hex(4)}")
    await first.files.begin(output, "batch_output", "out")
    await first.files.append(output, 0, b"one\n")
    assert await second.files.get(output) is None
    assert await first.batches.end(row.key, "one", row.kept, [output], TTL_S)
    found = await second.files.get(output)
    assert found is not None
    assert (found.num_bytes, found.expires_s) == (4, int(clock.now_s) + TTL_S)
    assert await second.batches.answered(row.key) == set()
    assert not await second.batches.cancel(row.key)
    clock.now_s += TTL_S
    assert await second.files.get(output) is None
    await second.files.tidy()
    assert await second.files.piece(output, 0) is None
    assert await second.batches.get(row.key) is None


async def test_a_store_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    connection = StoreConnection(file_store_place(str(tmp_path / "none" / "files.db")))
    with pytest.raises(FileStoreUnavailableError):
        await connection.run(lambda db: None)
    assert connection.num_errors == 1
    await connection.close()
    with pytest.raises(FileStoreUnavailableError, match="closed"):
        await connection.run(lambda db: None)


@pytest.mark.parametrize("place", ["redis://h", "mysql://u:secret@h/d", "/none/such/a.db"])
def test_a_wrong_place_is_refused(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--file-store"):
        check_file_store(place)
    assert main(["--check-config", f"--file-store={place}"]) == 2
    assert "secret" not in capsys.readouterr().err

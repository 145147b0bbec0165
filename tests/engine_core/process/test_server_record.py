"""What a server that was killed leaves in its directory, and who may remove it."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitserve.engine_core.process.server_record import NAME, RESPONSES_NAME, RecordFile, remove_orphan

RESPONSES = [RESPONSES_NAME, f"{RESPONSES_NAME}-shm", f"{RESPONSES_NAME}-wal"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in (*RESPONSES, "other"):
        (tmp_path / name).touch()
    return tmp_path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_a_running_server_keeps_stays(directory: Path) -> None:
    record = RecordFile(str(directory))
    remove_orphan(str(directory))
    assert names(directory) == ["other", *RESPONSES, NAME]
    record.close()
    assert names(directory) == ["other", *RESPONSES]


def test_what_a_killed_server_kept_goes(directory: Path) -> None:
    # Nobody holds its lock.
    (directory / NAME).touch()
    remove_orphan(str(directory))
    assert names(directory) == ["other"]


def test_some_of_it_may_be_gone_already(directory: Path) -> None:
    (directory / NAME).touch()
    (directory / RESPONSES[1]).unlink()
    remove_orphan(str(directory))
    assert names(directory) == ["other"]

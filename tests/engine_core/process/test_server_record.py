"""What a server that was killed leaves in its directory, and who may remove it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from splitserve.engine_core.process.runtime_directory import remove_orphans, runtime_directory
from splitserve.engine_core.process.server_record import NAME, RESPONSES_NAME, RecordFile, remove_orphan

FILES = ["api1.sock", RESPONSES_NAME, f"{RESPONSES_NAME}-wal"]
# Its main thread ends with its children told; another thread holds the lock a little longer.
DYING = """
import ctypes, os, sys, threading, time
from splitserve.engine_core.process.server_record import RecordFile
directory = f"{sys.argv[1]}/serve-{os.getpid()}"
os.mkdir(directory)
record = RecordFile(directory)
def end_later():
    time.sleep(0.2)
    os._exit(0)
threading.Thread(target=end_later).start()
print(os.getpid(), flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make(tmp_path / "serve-1")


def make(directory: Path) -> Path:
    directory.mkdir()
    for name in FILES:
        (directory / name).touch()
    return directory


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_a_running_server_keeps_stays(directory: Path) -> None:
    record = RecordFile(str(directory))
    remove_orphan(str(directory))
    assert names(directory) == [*FILES, NAME]
    record.close()
    remove_orphan(str(directory))
    assert names(directory) == FILES


def test_what_a_killed_server_kept_goes(directory: Path) -> None:
    # Nobody holds its lock.
    (directory / NAME).touch()
    remove_orphan(str(directory))
    assert names(directory) == []


@pytest.mark.skipif(sys.platform != "linux", reason="takes /proc")
def test_a_server_whose_last_thread_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DYING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        directory = tmp_path / f"serve-{pid}"
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        remove_orphan(str(directory))
    assert names(directory) == []


def test_the_next_server_removes_what_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    runtime = Path(runtime_directory())
    runtime.mkdir()
    killed, running, starting = (make(runtime / f"serve-{n}") for n in (1, 2, 3))
    (killed / NAME).touch()
    record = RecordFile(str(running))
    remove_orphans()
    assert not killed.exists()
    assert names(running) == [*FILES, NAME]
    assert names(starting) == FILES
    record.close()

"""Which engine owns the workers of an address, and what is left of the folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.kept import folder as folder_module
from splitserve.engine_core.kept.folder import (
    WorkersFolder,
    can_keep_workers,
    end_kept_workers,
    remove_folder_of,
    workers_folder,
)
from splitserve.engine_core.kept.processes import ProcessName, name_process
from splitserve.engine_core.kept.record import GroupRecord

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are kept on Linux only")
ADDRESS = "ipc:///tmp/of-a-test/engine.sock"


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as popen:
        yield popen
        popen.kill()


def test_engines_of_one_address_share_a_folder_and_others_do_not() -> None:
    assert workers_folder("ipc:///a/../a/engine.sock") == workers_folder("ipc:///a/engine.sock")
    assert workers_folder("tcp://127.0.0.1:5555") != workers_folder("tcp://127.0.0.1:5556")


@pytest.mark.parametrize("pid", [1, 4711, 2**22, 2**63 - 1, -1])
def test_workers_of_each_engine_have_a_socket_of_their_own_whose_path_is_short(pid: int) -> None:
    folder = WorkersFolder(ADDRESS)
    assert folder.socket_address(pid) != folder.socket_address(42)
    assert len(os.path.basename(folder.socket_address(pid))) == 4


@pytest.mark.parametrize(("address", "can"), [("tcp://127.0.0.1:0", False), ("tcp://127.0.0.1:50", True)])
def test_workers_of_a_port_that_nobody_knows_are_not_kept(address: str, can: bool) -> None:
    assert can_keep_workers(address) is can


def test_a_folder_that_is_owned_is_refused_and_names_the_owner(runtime: Path) -> None:
    folder = WorkersFolder(ADDRESS)
    folder.enter()
    with pytest.raises(ConfigError, match=f"another engine-core, process {os.getpid()};"):
        WorkersFolder(ADDRESS).enter(0.0)
    folder.leave(keep=False)
    assert os.listdir(runtime) == []


def test_a_folder_that_cannot_be_locked_is_refused(runtime: Path) -> None:
    folder = WorkersFolder(ADDRESS)
    os.makedirs(f"{folder.path}/lock", mode=0o700)
    os.chmod(f"{runtime}/splitserve", 0o700)
    with pytest.raises(ConfigError, match=r"cannot lock .*/lock: Is a directory"):
        folder.enter()
    assert end_kept_workers(ADDRESS) == 0


def test_the_end_of_the_owner_frees_the_folder() -> None:
    code = f"from splitserve.engine_core.kept.folder import *; f = WorkersFolder({ADDRESS!r}); f.enter(); "
    with subprocess.Popen(
        [sys.executable, "-c", code + "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.read(1)
        with pytest.raises(ConfigError, match=f"process {owner.pid};"):
            WorkersFolder(ADDRESS).enter(0.0)
        owner.kill()
        owner.wait()
    folder = WorkersFolder(ADDRESS)
    folder.enter(0.0)
    folder.leave(keep=False)


def test_kept_workers_are_found_by_the_next_owner() -> None:
    record = GroupRecord("f", [ProcessName(1, 2)])
    folder = WorkersFolder(ADDRESS)
    folder.enter()
    folder.write(record)
    folder.leave(keep=True)
    folder.leave(keep=False)
    successor = WorkersFolder(ADDRESS)
    successor.enter()
    assert successor.read() == record
    successor.forget()
    assert successor.read() is None
    successor.leave(keep=False)


def test_waiting_workers_are_ended_from_outside(runtime: Path, sleeper: subprocess.Popen[bytes]) -> None:
    folder = WorkersFolder(ADDRESS)
    folder.enter()
    folder.write(GroupRecord("f", [name_process(sleeper.pid)]))
    assert end_kept_workers(ADDRESS) == 0, "an engine owns them"
    folder.leave(keep=True)
    assert end_kept_workers(ADDRESS) == 1
    assert sleeper.wait(60) == -9
    assert os.listdir(runtime) == []
    assert end_kept_workers(ADDRESS) == 0


def test_nobody_becomes_the_owner_while_files_are_removed(
    monkeypatch: pytest.MonkeyPatch, runtime: Path
) -> None:
    folder = WorkersFolder(ADDRESS)
    folder.enter()
    folder.write(GroupRecord("f", [ProcessName(4711, 1)]))
    folder.leave(keep=True)
    refused: list[str] = []

    def remove_and_enter(path: str) -> None:
        remove_files(path)
        with pytest.raises(ConfigError):
            WorkersFolder(ADDRESS).enter(0.0)
        refused.append(path)

    remove_files = folder_module._remove_files
    monkeypatch.setattr(folder_module, "_remove_files", remove_and_enter)
    remove_folder_of(4711, folder.path)
    assert refused == [folder.path]
    assert os.listdir(runtime) == []


def test_a_worker_that_gives_up_removes_its_own_folder_only(runtime: Path) -> None:
    folder = WorkersFolder(ADDRESS)
    folder.enter()
    folder.write(GroupRecord("f", [ProcessName(4711, 1)]))
    remove_folder_of(4711, folder.path)
    assert folder.read() is not None, "an engine owns it"
    folder.leave(keep=True)
    remove_folder_of(4712, folder.path)
    assert folder.read() is not None, "it is about others"
    remove_folder_of(4711, folder.path)
    assert os.listdir(runtime) == []
    remove_folder_of(4711, folder.path)

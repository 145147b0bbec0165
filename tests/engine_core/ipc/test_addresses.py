"""Where sockets may be bound: private directories, free paths, keys beyond this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.addresses import (
    check_keys,
    claim_ipc_path,
    make_private_directory,
    needs_keys,
    remove_stale_socket,
)
from splitserve.frontend.config import FrontendConfig


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ipc:///tmp/x/engine.sock", False),
        ("tcp://127.0.0.1:5555", False),
        ("tcp://127.1.2.3:5555", False),
        ("tcp://[::1]:5555", False),
        ("tcp://localhost:5555", False),
        ("tcp://[::ffff:127.0.0.1]:5555", False),
        ("tcp://[::ffff:10.0.0.7]:5555", True),
        ("tcp://*:5555", True),
        ("tcp://0.0.0.0:5555", True),
        ("tcp://[::]:5555", True),
        ("tcp://10.0.0.7:5555", True),
        ("tcp://gpu-box:5555", True),
        ("tcp://localhost.example.org:5555", True),
        ("tcp://127.0.0.1.example.org:5555", True),
    ],
)
def test_only_addresses_beyond_this_machine_need_keys(address: str, expected: bool) -> None:
    assert needs_keys(address) is expected


def test_plain_tcp_beyond_this_machine_is_refused_with_both_ways_out() -> None:
    with pytest.raises(ConfigError, match=r"splitserve keys DIR.*--insecure"):
        check_keys("tcp://*:5555", has_keys=False, allow_insecure_tcp=False)
    check_keys("tcp://*:5555", has_keys=True, allow_insecure_tcp=False)
    check_keys("tcp://*:5555", has_keys=False, allow_insecure_tcp=True)


def test_a_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    assert make_private_directory(str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    assert not make_private_directory(str(path)), "the second caller has not made it"


@pytest.mark.parametrize("num_times", [1, 3])
def test_a_directory_that_another_server_removes_meanwhile_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_times: int
) -> None:
    path, makedirs, lstat = tmp_path / "run", os.makedirs, os.lstat
    to_make, to_remove = [path] * num_times, [path] * num_times

    def make_behind_another(name: str, mode: int) -> None:
        if to_make:
            to_make.pop().mkdir(mode=0o700)
        makedirs(name, mode)

    def look_behind_another(name: str) -> os.stat_result:
        if to_remove:
            to_remove.pop().rmdir()
        return lstat(name)

    monkeypatch.setattr(os, "makedirs", make_behind_another)
    monkeypatch.setattr(os, "lstat", look_behind_another)
    assert make_private_directory(str(path))
    assert to_make == to_remove == []
    assert path.is_dir()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_a_directory_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ConfigError, match="writable by others"):
        make_private_directory(str(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        make_private_directory(str(path))


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="not a directory"):
        make_private_directory(str(tmp_path / "link"))


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/below"):
        make_private_directory(str(tmp_path / "file" / "below"))


def test_a_stale_socket_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    remove_stale_socket(str(path))
    assert not path.exists()


@pytest.mark.parametrize("backlog", [0, 5])
def test_a_socket_somebody_listens_on_stays(tmp_path: Path, backlog: int) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as alive, socket.socket(socket.AF_UNIX) as waiting:
        alive.bind(str(path))
        alive.listen(backlog)
        # With a backlog of 0 this one fills it; nobody ever accepts.
        waiting.connect(str(path))
        with pytest.raises(ConfigError, match="already listens"):
            remove_stale_socket(str(path))
    assert path.exists()


def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="not a socket"):
        remove_stale_socket(str(path))
    assert path.read_text() == "data"


def test_the_directory_is_locked_while_an_address_is_claimed(tmp_path: Path) -> None:
    import fcntl

    with claim_ipc_path(str(tmp_path / "s")):
        other = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    assert os.listdir(tmp_path) == [], "no lock file is left"


@pytest.mark.parametrize("flag", ["--listen", "--kv-events-address", "--kv-events-replay-address"])
def test_an_abstract_name_is_no_address_of_an_engine(flag: str) -> None:
    addresses = {"--kv-events-address": "ipc:///tmp/x", flag: "ipc://@engine"}
    fields: dict[str, Any] = {
        name.removeprefix("--").replace("-", "_"): address for name, address in addresses.items()
    }
    with pytest.raises(ConfigError, match=f"{flag} must be ipc://PATH .* got 'ipc://@engine'"):
        EngineConfig(model="m", **fields).validate()


def test_an_abstract_name_is_no_address_of_an_engine_to_connect_to() -> None:
    with pytest.raises(ConfigError, match=r"--engine must be ipc://PATH .* got 'ipc://@engine'"):
        FrontendConfig(engines=("ipc://@engine",)).validate()

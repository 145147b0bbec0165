"""A PostgreSQL and a Redis of the tests' own, on Unix sockets, where their programs are installed."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_START_S = 60.0


def _wait_for(condition: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@contextlib.contextmanager
def _running(command: list[str], log: Path, user: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, cwd="/", user=user)
    try:
        yield process
    finally:
        # A fast shutdown of PostgreSQL; Redis takes it as its usual end.
        process.send_signal(2)
        process.wait(_START_S)


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """A Redis that keeps nothing on disk; yields its URL."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    socket = folder / "redis.sock"
    flags = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
    log = folder / "redis.log"
    with _running([program, *flags, "--dir", str(folder)], log) as process:
        _wait_for(socket.exists, process, log)
        yield f"unix://{socket}"


@contextlib.contextmanager
def postgresql_server(folder: Path) -> Iterator[str]:
    """A PostgreSQL with an empty database; yields its URL."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    initdb = shutil.which("initdb") or (found[-1] if found else None)
    if initdb is None:
        pytest.skip("PostgreSQL is not installed")
    user = None
    if os.getuid() == 0:
        # It refuses to run as root.
        user = "postgres"
        try:
            owner = pwd.getpwnam(user)
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    data, log = folder / "data", folder / "postgres.log"
    make = [initdb, "-D", str(data), "-U", "splitserve", "--auth=trust", "--no-sync"]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd="/", user=user)
    flags = ["-D", str(data), "-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off"]
    with _running([str(Path(initdb).with_name("postgres")), *flags], log, user) as process:
        _wait_for(lambda: b"ready to accept connections" in log.read_bytes(), process, log)
        yield f"postgresql://splitserve@/postgres?host={folder}"

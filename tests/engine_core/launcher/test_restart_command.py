"""`splitserve restart` against records of servers that this process plays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.launcher.cli import main
from splitserve.engine_core.launcher.restart import RESTART, RestartSettings, find_server, restart
from splitserve.engine_core.process.runtime_directory import leave_runtime_directory, runtime_directory
from splitserve.engine_core.process.server_record import NAME, RecordFile, ServerRecord, read_record
from splitserve.engine_core.settings.arguments import flag_words
from tests.engine_core.settings.values import other_value


class PlayedServer:
    """A record whose server is this process."""

    def __init__(self, number: int) -> None:
        self.directory = f"{runtime_directory()}/serve-{number}"
        os.makedirs(self.directory)
        self.file = RecordFile(self.directory)
        self.record = ServerRecord(
            pid=os.getpid(), started_s=1.0, place=f"http://h:{number}", port=number, engine="ipc:///e"
        )
        self.write()

    def write(self, **changes: object) -> None:
        self.record = msgspec.structs.replace(self.record, **changes)
        self.file.write(self.record)


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def on_hang_up() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Sets what the played server does when it is asked."""
    before = signal.getsignal(signal.SIGHUP)

    def take(what: Callable[[], object]) -> None:
        signal.signal(signal.SIGHUP, lambda *_: what())

    yield take
    signal.signal(signal.SIGHUP, before)


OnHangUp = Callable[[Callable[[], object]], None]


def test_it_tells_when_all_is_replaced(on_hang_up: OnHangUp) -> None:
    server, said = PlayedServer(1), list[str]()
    on_hang_up(lambda: server.write(num_rolls_begun=1, num_rolls_ended=1))
    assert restart(RestartSettings(), said.append) == 0
    assert said[0].startswith("restarted http://h:1 in ")


def test_it_tells_why_a_restart_failed(on_hang_up: OnHangUp) -> None:
    server, said = PlayedServer(1), list[str]()
    on_hang_up(lambda: server.write(num_rolls_begun=1, num_rolls_ended=1, failure="the reason"))
    assert restart(RestartSettings(), said.append) == 1
    assert said == ["the restart of http://h:1 failed: the reason"]


def test_it_tells_that_the_server_ended(on_hang_up: OnHangUp) -> None:
    server, said = PlayedServer(1), list[str]()
    on_hang_up(server.file.close)
    assert restart(RestartSettings(), said.append) == 1
    assert said == [f"the server with pid {os.getpid()} has ended"]


def test_a_restart_in_progress_is_not_taken_for_ours(on_hang_up: OnHangUp) -> None:
    server, said = PlayedServer(1), list[str]()
    server.write(num_rolls_begun=3, num_rolls_ended=2, failure="of an older one")
    on_hang_up(lambda: server.write(num_rolls_begun=4, num_rolls_ended=4, failure=""))
    assert restart(RestartSettings(), said.append) == 0


def test_it_need_not_wait(on_hang_up: OnHangUp) -> None:
    PlayedServer(1)
    asked = list[bool]()
    on_hang_up(lambda: asked.append(True))
    assert restart(RestartSettings(wait=False), print) == 0
    assert asked == [True]


def test_of_several_servers_one_must_be_named() -> None:
    servers = [PlayedServer(1), PlayedServer(2)]
    with pytest.raises(ConfigError, match=r"several servers run.*http://h:1 .*http://h:2"):
        find_server(RestartSettings())
    assert find_server(RestartSettings(port=2))[0] == servers[1].directory
    servers[0].file.close()
    assert find_server(RestartSettings())[0] == servers[1].directory


@pytest.mark.parametrize("words", [[], ["--port", "9"], ["--pid", "9"]])
def test_no_such_server_is_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restart", *words]) == 2
    assert "splitserve: error: no such server is ready" in capsys.readouterr().err


@pytest.mark.parametrize("each", RESTART, ids=lambda each: each.flag)
def test_every_flag_is_understood(each, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    given = list[RestartSettings]()
    monkeypatch.setattr(
        "splitserve.engine_core.launcher.restart.restart", lambda settings, _: given.append(settings) or 0
    )
    assert main(["restart", *flag_words([each], {each.field: other_value(each)})]) == 0
    assert getattr(given[0], each.field) == other_value(each) != each.default


def test_the_record_of_a_server_that_was_killed_is_no_server_and_removed() -> None:
    server = PlayedServer(1)
    os.close(server.file._fd)
    assert os.path.exists(f"{server.directory}/{NAME}")
    assert read_record(server.directory) is None
    leave_runtime_directory(server.directory)
    assert not os.path.exists(runtime_directory())


def test_the_record_of_a_server_that_runs_is_left_alone() -> None:
    server = PlayedServer(1)
    leave_runtime_directory(server.directory)
    assert read_record(server.directory) == server.record
    server.write(failure="x" * 50)
    server.write(failure="")
    assert read_record(server.directory) == server.record


def test_a_damaged_record_is_no_server() -> None:
    server = PlayedServer(1)
    os.pwrite(server.file._fd, b"{", 0)
    os.ftruncate(server.file._fd, 1)
    assert read_record(server.directory) is None


def test_an_interrupt_ends_the_wait_without_a_traceback(on_hang_up: OnHangUp) -> None:
    PlayedServer(1)
    on_hang_up(lambda: signal.raise_signal(signal.SIGINT))
    assert main(["restart"]) == 130

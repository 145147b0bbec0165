"""A rolling restart of a real server: SIGHUP and `splitserve restart`."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil

from tests.engine_core.launcher.serving import DEADLINE_S, ENGINE, FRONTEND, ROOT, Serving, serving
from tests.engine_core.launcher.streams import Stream
from tests.engine_core.processes import wait_ended


def restart(server: Serving, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "splitserve.engine_core.launcher.cli", "restart", *flags],
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": str(server.folder / "run")},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )


def processes(server: Serving) -> list[psutil.Process]:
    return [*server.children(ENGINE), *server.children(FRONTEND)]


def test_a_hang_up_signal_without_a_terminal_replaces_all_processes() -> None:
    with serving("--api-server-count", "2") as server:
        url = server.url()
        server.wait_all_ready(url, 2)
        text = server.complete(url)
        before = processes(server)
        server.popen.send_signal(signal.SIGHUP)
        server.wait_for("rolling restart done")
        assert wait_ended(before, DEADLINE_S) == []
        server.complete_until(url, text)
        assert len(server.children(FRONTEND)) == 2
        assert "unexpectedly" not in server.output
        assert server.stop() == 0


def test_the_command_waits_for_the_end_of_the_restart() -> None:
    with serving() as server:
        url = server.url()
        before = processes(server)
        done = restart(server)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert f"restarted {url} in" in done.stderr
        after = processes(server)
        assert not set(before[:1]) & set(after)
        assert server.stop() == 0


def test_the_command_finds_a_server_by_port_and_pid_and_need_not_wait() -> None:
    with serving() as server:
        url = server.url()
        other = restart(server, "--pid", "1")
        assert other.returncode == 2
        assert "no such server" in other.stderr
        flags = ("--port", url.rpartition(":")[2], "--pid", str(server.popen.pid), "--no-wait")
        assert restart(server, *flags).returncode == 0
        server.wait_for("rolling restart done")
        assert server.stop() == 0


def test_a_restart_whose_successor_cannot_run_fails_and_the_old_frontend_serves_on(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("an-api-key-of-some-length\n")
    with serving("--api-key-file", str(keys)) as server:
        url = server.url()
        before = server.children(FRONTEND)
        keys.unlink()
        done = restart(server)
        assert done.returncode == 1
        assert "api-frontend 2 ended before it served (exit code 2)" in done.stderr
        assert server.children(FRONTEND) == before
        assert httpx.get(f"{url}/live", timeout=DEADLINE_S).status_code in (200, 401)
        assert server.stop() == 0


def test_the_end_of_its_terminal_ends_the_server() -> None:
    with serving() as server:
        url = server.url()
        model = str(server.folder / "model")
        words = ["serve", model, "--executor", "simulated", "--port", "0"]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(server.folder / "run")}
        pid, master = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            command = [sys.executable, "-m", "splitserve.engine_core.launcher.cli", *words]
            os.execve(sys.executable, command, environment)
        said = b""
        while b"is ready after" not in said:
            said += os.read(master, 65536)
        os.close(master)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        # The other server has no terminal and serves on.
        assert len(server.complete(url)) > 0
        assert server.stop() == 0


def test_streams_that_are_open_all_the_time_go_on() -> None:
    with serving("--api-server-count", "2", "--simulated-step-ms", "10") as server:
        url = server.url()
        server.wait_all_ready(url, 2)
        streams = [Stream(url) for _ in range(8)]
        for stream in streams:
            stream.wait_first()
        assert restart(server).returncode == 0
        assert [stream.finish() for stream in streams] == [(Stream.NUM_TOKENS, False)] * len(streams)
        assert server.stop() == 0


def test_a_restart_onto_a_model_that_cannot_be_served_leaves_the_engine_alone() -> None:
    with serving() as server:
        url = server.url()
        engine, text = server.engine(), server.complete(url)
        (server.folder / "model" / "config.json").write_text("{}")
        done = restart(server)
        assert done.returncode == 1
        assert "the successor of engine-core ended before it served (exit code 3)" in done.stderr
        assert "rolling restart failed" in server.wait_for("rolling restart failed.*")[0]
        assert (server.engine(), server.complete(url)) == (engine, text)
        assert server.stop() == 0


def test_a_spare_engine_takes_the_place_of_one_that_is_lost_and_another_one_follows() -> None:
    with serving() as server:
        url = server.url()
        text = server.complete(url)
        for _ in range(2):
            engine, spare = server.engine(), server.spare()
            engine.kill()
            server.complete_until(url, text)
            assert server.engine() == spare
        assert server.spare().is_running()
        assert server.stop() == 0


def test_a_spare_engine_that_was_stopped_is_replaced_too() -> None:
    with serving() as server:
        url = server.url()
        text = server.complete(url)
        engine, spare = server.engine(), server.spare()
        server.wait_for("spare engine-core ready")
        spare.send_signal(signal.SIGSTOP)
        engine.kill()
        server.wait_for("engine-core hangs, killing it")
        server.complete_until(url, text)
        assert server.stop() == 0


def test_a_spare_engine_that_is_lost_disturbs_nobody() -> None:
    with serving() as server:
        url = server.url()
        engine, spare = server.engine(), server.spare()
        spare.kill()
        server.wait_for(
            r"no spare engine-core: the successor of engine-core ended before it served \(killed by SIGKILL\)"
        )
        assert (server.engine(), len(server.complete(url)) > 0) == (engine, True)
        engine.kill()
        server.wait_for("starting engine-core(?s:.*)starting engine-core")
        assert server.stop() == 0

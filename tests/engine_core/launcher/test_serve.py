"""`splitserve serve` with real child processes: one up, one down, all down."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import psutil
import pytest

from tests.engine_core.launcher.serving import DEADLINE_S, ENGINE, FRONTEND, ROOT, Serving, serving
from tests.engine_core.launcher.streams import Stream
from tests.engine_core.processes import wait_ended


def test_two_frontends_share_one_port_and_the_banner_tells_how_to_ask_them() -> None:
    with serving("--api-server-count", "2") as server:
        url = server.url()
        assert len(server.children(FRONTEND)) == 2
        server.wait_all_ready(url, 2)
        assert len({server.complete(url) for _ in range(10)}) == 1
        banner = server.wait_for(r"(?s)is ready after.*try .*\n")[0]
        assert "model   tiny" in banner
        assert f"docs    {url}/docs" in banner
        assert_curl_works(server.wait_for(r"try     (curl .*)\n")[1])
        assert_another_frontend_may_join(server, url)
        assert server.stop() == 0


def assert_curl_works(command: str) -> None:
    # The tiny model has no chat template; the same words for a plain completion.
    command = command.replace("/chat/", "/")
    command = command.replace('"messages": [', '"max_tokens": 3, "prompt": "Hi", "user": "')
    command = command.replace('{"role": "user", "content": "Hello!"}]', '"')
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=DEADLINE_S)
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 3


def assert_another_frontend_may_join(server: Serving, url: str) -> None:
    address = server.wait_for(r"api-frontend --engine (ipc://\S+)")[1]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = ["--engine", address, "--fd", str(listener.fileno())]
        with subprocess.Popen(
            [sys.executable, "-m", FRONTEND, *words],
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stderr=subprocess.DEVNULL,
        ) as third:
            other_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            server.complete_until(other_url, server.complete(url))
            third.terminate()
            assert third.wait(DEADLINE_S) == 0


def test_a_killed_frontend_is_replaced_and_nobody_else_notices() -> None:
    with serving("--api-server-count", "2", "--simulated-step-ms", "5") as server:
        url = server.url()
        engine = server.engine()
        victim, other = server.children(FRONTEND)
        server.wait_all_ready(url, 2)
        streams = [Stream(url) for _ in range(6)]
        for stream in streams:
            stream.wait_first()
        victim.kill()
        server.wait_for(r"api-frontend \d ended unexpectedly \(killed by SIGKILL\)")
        after = server.children_when(FRONTEND, lambda found: len(found) == 2 and victim not in found)
        assert other in after
        assert server.engine() == engine
        # The streams of the killed one broke; those of the other went on to their end.
        finished = [stream.finish() for stream in streams]
        assert all(count == Stream.NUM_TOKENS or broken for count, broken in finished)
        server.wait_all_ready(url, 2)
        assert len(server.complete(url)) > 0


def is_refused(url: str) -> bool:
    try:
        httpx.get(f"{url}/live", timeout=DEADLINE_S)
    except httpx.TransportError:
        return True
    return False


def test_a_killed_engine_is_replaced_and_the_frontends_find_it_again() -> None:
    with serving() as server:
        url = server.url()
        text = server.complete(url)
        frontends = server.children(FRONTEND)
        server.engine().kill()
        server.wait_for(r"engine-core ended unexpectedly \(killed by SIGKILL\), restarting")
        server.complete_until(url, text)
        assert server.children(FRONTEND) == frontends
        assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_streams_finish(number: signal.Signals) -> None:
    with serving("--simulated-step-ms", "3") as server:
        stream = Stream(server.url())
        stream.wait_first()
        assert server.stop(number) == 0
        assert stream.finish() == (Stream.NUM_TOKENS, False)
        assert "finishing running requests" in server.output
        assert "Traceback" not in server.output


def test_nobody_is_let_in_while_streams_finish() -> None:
    with serving("--simulated-step-ms", "200") as server:
        url = server.url()
        stream = Stream(url)
        stream.wait_first()
        server.popen.send_signal(signal.SIGTERM)
        server.wait_for(r"frontend draining")
        # The frontend closes its socket just after it says so.
        assert any(is_refused(url) for _ in range(1000))
        assert stream.is_open, "its tokens take a minute"
        assert server.stop() == 128 + signal.SIGTERM


def test_a_second_signal_ends_at_once() -> None:
    with serving("--simulated-step-ms", "1000") as server:
        url = server.url()
        stream = Stream(url)
        stream.wait_first()
        server.popen.send_signal(signal.SIGINT)
        server.wait_for("finishing running requests")
        assert server.stop(signal.SIGINT) == 128 + signal.SIGINT
        assert stream.finish()[0] < Stream.NUM_TOKENS


@pytest.mark.parametrize("num_frontends", ["1", "2"])
def test_children_end_with_a_parent_that_is_killed_and_leave_nothing(num_frontends: str) -> None:
    with serving("--api-server-count", num_frontends) as server:
        server.url()
        children = [*server.children(ENGINE), *server.children(FRONTEND)]
        assert len(children) >= 1 + int(num_frontends)
        server.popen.kill()
        server.read_to_end()
        assert wait_ended(children, DEADLINE_S) == []


def test_an_engine_that_was_restarted_leaves_nothing_either() -> None:
    with serving() as server:
        url = server.url()
        text = server.complete(url)
        server.engine().kill()
        server.complete_until(url, text)
        server.popen.kill()


def test_a_configuration_error_of_the_engine_is_told_once_and_not_retried() -> None:
    with serving("--max-model-len", "513") as server:
        assert server.read_to_end() == 2
        assert server.output.count("engine-core: error: --max-model-len 513") == 1
        assert server.output.count("starting engine-core") == 1
        assert "engine-core cannot run (exit code 2), giving up" in server.output


def run(runtime: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "splitserve.engine_core.launcher.cli", *words],
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_a_frontend_flag_that_is_wrong_ends_the_server_with_its_message() -> None:
    with serving("--ssl-keyfile", "/no/such/key") as server:
        assert server.read_to_end() == 2
        assert "--ssl-keyfile" in server.output
        assert "starting" not in server.output


def test_a_child_that_always_fails_is_given_up_after_five_restarts() -> None:
    with serving("--api-server-count", "1") as server:
        server.url()
        for _ in range(6):
            found = server.children_when(FRONTEND, lambda found: len(found) == 1)
            found[0].kill()
            psutil.wait_procs(found, DEADLINE_S)
        assert server.read_to_end() == 128 + signal.SIGKILL
        assert "ended 6 times within 60 s (killed by SIGKILL), giving up" in server.output


@pytest.mark.slow
def test_a_frontend_that_always_fails_is_left_alone_and_the_streams_of_another_go_on() -> None:
    with serving("--api-server-count", "2", "--simulated-step-ms", "20") as server:
        url = server.url()
        server.wait_all_ready(url, 2)
        steady, victim = server.children(FRONTEND)
        for _ in range(5):
            victim.kill()
            psutil.wait_procs([victim], DEADLINE_S)
            found = server.children_when(FRONTEND, lambda found: len(found) == 2)
            (victim,) = (child for child in found if child != steady)
        os.kill(victim.pid, signal.SIGSTOP)
        stream = Stream(url)
        stream.wait_first()
        victim.kill()
        server.wait_for(r"ended 6 times within 60 s \(killed by SIGKILL\): continuing without it")
        assert stream.finish() == (Stream.NUM_TOKENS, False)
        assert steady in server.children(FRONTEND)
        assert server.stop() == 0


def test_a_port_in_use_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(tmp_path, "serve", "--port", str(port))
    assert done.returncode == 2
    assert f"port {port} of 127.0.0.1 is in use" in done.stderr
    assert "starting" not in done.stderr


def test_a_unix_socket_is_shared_and_removed() -> None:
    with tempfile.TemporaryDirectory() as folder, serving("--uds", f"{folder}/api.sock") as server:
        server.wait_for("is ready after")
        assert os.stat(f"{folder}/api.sock").st_mode & 0o777 == 0o660
        with httpx.Client(transport=httpx.HTTPTransport(uds=f"{folder}/api.sock")) as client:
            assert client.get("http://localhost/v1/models").json()["data"][0]["id"] == "tiny"
        assert server.stop() == 0
        assert os.listdir(folder) == []

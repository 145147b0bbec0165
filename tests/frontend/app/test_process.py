"""The api-frontend command as a process: addresses, exit codes, what it loads, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from splitserve.frontend.cli import main

COMMAND = [sys.executable, "-m", "splitserve.frontend.cli"]
NO_ENGINE = "ipc:///tmp/splitserve-test-no-such-engine.sock"


@contextlib.contextmanager
def running(
    *flags: str, pass_fds: tuple[int, ...] = (), said: list[str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start the command and wait until it listens, its lines going to `said`; yields the address it names."""
    process = subprocess.Popen(
        [*COMMAND, "--engine", NO_ENGINE, *flags], stderr=subprocess.PIPE, text=True, pass_fds=pass_fds
    )
    try:
        assert process.stderr is not None
        lines = said if said is not None else []
        for line in process.stderr:
            lines.append(line)
            match = re.search(r"listening\"?,? \"?address(?:=|\": )\"?([^\s\"]+)", line)
            if match:
                yield match[1], process
                return
        raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def end(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(timeout=60)


def test_it_starts_before_any_engine_and_ends_on_sigterm() -> None:
    with running("--port", "0") as (url, process):
        assert httpx.get(f"{url}/live").status_code == 200
        ready = httpx.get(f"{url}/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "x"}).status_code == 503
        assert end(process) == 0


def test_no_variable_of_the_http_library_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "many")
    with running("--port", "0") as (url, process):
        assert httpx.get(f"{url}/live").status_code == 200
        assert end(process) == 0


def test_a_unix_socket_is_for_user_and_group_and_goes_with_the_process(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with running("--uds", str(path)) as (address, process):
        assert address == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://frontend/live").status_code == 200
        assert end(process) == 0
    assert not path.exists()


def test_an_inherited_socket_is_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with running("--fd", str(listener.fileno()), pass_fds=(listener.fileno(),)) as (url, process):
            assert url == f"http://127.0.0.1:{port}"
            assert httpx.get(f"{url}/live").status_code == 200
            assert end(process) == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    with running("--port", "0", "--ssl-keyfile", str(key), "--ssl-certfile", str(certificate)) as (
        url,
        process,
    ):
        assert url.startswith("https://")
        assert httpx.get(f"{url}/live", verify=_trusting(certificate)).status_code == 200
        assert end(process) == 0


def _trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def test_a_taken_port_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--engine", NO_ENGINE, "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"api-frontend: error: cannot listen on 127.0.0.1 port {port}: Address already in use" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--engine", "tcp://10.0.0.1:5555"), "reachable from other machines"),
        (("--fd", "1000000"), "descriptor 1000000"),
        (("--fd", "-1"), "--fd must be from 0 to"),
        (
            ("--launch-fd", str(2**40), "--launch-dir", "/d", "--launch-number", "1"),
            "--launch-fd must be from",
        ),
        (("--host", "bad..host"), "bad..host"),
        (("--uds", f"{__file__}/x.sock"), "Not a directory"),
        (("--uds", "/no/such/folder/x.sock"), "/no/such/folder/x.sock"),
        (("--ssl-keyfile", "/none", "--ssl-certfile", "/none"), "--ssl-certfile"),
        (("--host", "203.0.113.1", "--port", "0"), "203.0.113.1"),
    ],
)
def test_an_unusable_environment_is_exit_code_2_without_traceback(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--port", "0", "--engine", NO_ENGINE, *flags]) == 2
    said = capsys.readouterr().err
    assert words in said.splitlines()[-1]
    assert "Traceback" not in said


def test_the_log_of_a_start_shows_no_key(tmp_path: Path) -> None:
    said: list[str] = []
    flags = ("--port", "0", "--api-key", "sk-very-secret-key", "--log-level", "debug")
    with running(*flags, said=said) as (url, process):
        assert httpx.get(f"{url}/version").status_code == 401
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said.append(process.stderr.read())
    assert "config" in said[0]
    assert "very-secret" not in "".join(said)
    assert "short_api_keys" not in "".join(said)


def test_every_line_of_the_log_is_json_if_asked_for() -> None:
    flags = ("--port", "0", "--log-format", "json", "--log-level", "debug", "--api-key", "abc")
    said: list[str] = []
    with running(*flags, said=said) as (url, process):
        assert httpx.get(f"{url}/x%0a%1b", headers={"authorization": "Bearer abc"}).status_code == 404
        assert end(process) == 0
        assert process.stderr is not None
        said += process.stderr
    records = [json.loads(line) for line in said]
    events = [record.get("event") for record in records]
    assert {"api_frontend", "short_api_keys", "listening", "request", "draining"} <= set(events)
    request = records[events.index("request")]
    assert (request["path"], request["status"]) == ("/x\n\x1b", 404)


def test_a_short_key_is_served_with_a_warning() -> None:
    said: list[str] = []
    with running("--port", "0", "--api-key", "abc", said=said) as (url, _):
        with_key = {"authorization": "Bearer abc"}
        assert httpx.get(f"{url}/version", headers=with_key).status_code == 200
        assert httpx.get(f"{url}/version").status_code == 401
    (warning,) = [line for line in said if "short_api_keys" in line]
    assert " WARNING " in warning
    assert "count=1 safe_from_chars=16" in warning


def test_a_configuration_is_checked_without_serving(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check-config", "--port", "0", "--api-key", "abc"]) == 0
    assert main(["--check-config", "--root-path", "x"]) == 2
    assert capsys.readouterr().err.startswith("api-frontend: error: --root-path")


@pytest.mark.parametrize(
    "statement",
    ["import splitserve.frontend.http_server, splitserve.frontend.openai.chat, splitserve.frontend.cli"],
)
def test_nothing_of_the_http_side_loads_torch(statement: str) -> None:
    check = "import sys; print([m for m in ('torch', 'transformers', 'worker') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", f"{statement}; {check}"], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "flags", [["--version"], ["--help"], ["--no-such-flag"], ["--port", "x"], ["--engine", "foo"]]
)
def test_version_help_and_errors_load_no_server(flags: list[str]) -> None:
    code = (
        "import sys\nfrom splitserve.frontend.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('fastapi', 'uvicorn', 'zmq', 'tokenizers', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"

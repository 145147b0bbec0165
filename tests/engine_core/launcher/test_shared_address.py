"""Frontends of one `splitserve serve`: they share an address, its connections and a scrape."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.engine_core.launcher.serving import DEADLINE_S, Serving, serving

pytestmark = pytest.mark.slow

FRONTEND = "splitserve.frontend.cli"
REQUEST = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def scrape(url: str, name: str) -> dict[str, float]:
    """One scrape: a metric's values by frontend."""
    text = httpx.get(f"{url}/metrics", timeout=DEADLINE_S).text
    return {number: float(value) for number, value in re.findall(rf'{name}{{frontend="(\d+)"}} (\S+)', text)}


class Connections:
    """Connections that are kept open."""

    def __init__(self, url: str) -> None:
        self._address = ("127.0.0.1", httpx.URL(url).port)
        self.open: list[socket.socket] = []

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.open:
            connection.close()

    def add(self, num: int) -> None:
        """Open some at once, then ask on each and wait for its answer."""
        added = [socket.create_connection(self._address, DEADLINE_S) for _ in range(num)]
        self.open += added
        for connection in added:
            connection.sendall(REQUEST)
        for connection in added:
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                data = connection.recv(4096)
                assert data, answer
                answer += data


def wait_until(condition: Callable[[], bool], server: Serving) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, server.output
        server.read(time.monotonic() + 0.02)


def test_connections_are_spread_over_the_frontends_and_a_scrape_tells_all_of_them() -> None:
    with serving("--api-server-count", "4") as server:
        url = server.url()
        server.wait_all_ready(url, 4)

        def all_have_some() -> bool:
            counts = scrape(url, "splitserve:frontend_open_connections")
            return len(counts) == 4 and min(counts.values()) >= 5

        with Connections(url) as connections:
            connections.add(24)
            # On an idle machine these do; a frontend that is starved for long gets its share later.
            while not all_have_some():
                assert len(connections.open) < 400
                connections.add(4)
            wait_until(
                lambda: scrape(url, "splitserve:frontend_up") == {"1": 1, "2": 1, "3": 1, "4": 1}, server
            )


def test_neither_a_stopped_nor_a_killed_frontend_keeps_others_from_taking_connections() -> None:
    with serving("--api-server-count", "3") as server:
        url = server.url()
        server.wait_all_ready(url, 3)
        stopped, killed, _ = server.children(FRONTEND)
        stopped.suspend()
        wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, server)
        with Connections(url) as connections:
            connections.add(12)
            wait_until(lambda: sorted(scrape(url, "splitserve:frontend_up").values()) == [0, 1, 1], server)
            killed.kill()
            psutil.wait_procs([killed], DEADLINE_S)
        with Connections(url) as connections:
            connections.add(12)
        stopped.resume()
        server.wait_all_ready(url, 3)
        assert server.stop() == 0


def test_a_replaced_frontend_keeps_its_number(server_of_two: Serving) -> None:
    url = server_of_two.url()
    server_of_two.wait_all_ready(url, 2)
    server_of_two.children(FRONTEND)[0].kill()
    server_of_two.wait_for("ended unexpectedly")
    server_of_two.wait_all_ready(url, 2)
    wait_until(lambda: set(scrape(url, "process_open_fds")) == {"1", "2"}, server_of_two)


@pytest.fixture
def server_of_two() -> Iterator[Serving]:
    with serving("--api-server-count", "2") as server:
        yield server


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_two_frontends_share_an_address_with_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *make, *files, "-days", "2", *names], check=True, capture_output=True)
    trust = ssl.create_default_context(cafile=str(certificate))
    flags = ("--ssl-keyfile", str(key), "--ssl-certfile", str(certificate))
    with serving("--api-server-count", "2", *flags) as server:
        url = server.url()
        for _ in range(8):
            with httpx.Client(verify=trust, timeout=DEADLINE_S) as client:
                assert [client.get(f"{url}/live").status_code for _ in range(2)] == [200, 200]
        assert server.stop(signal.SIGTERM) == 0

"""What a client of a dying engine saw is told apart: whole, broken, refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.compare.engine_death import Stream, find_victim, longest_gap, read_stream, run_streams
from benchmarks.compare.processes import EngineError

TEXT = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
END = b'data: {"choices": [{"text": "b", "finish_reason": "length"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "gone"}}\n\n'


@contextmanager
def served(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "text", "whole", "error"),
    [
        (200, TEXT + END + DONE, "ab", True, ""),
        (200, TEXT + DONE, "a", False, ""),
        (200, TEXT + ERROR + DONE, "a", False, "error event"),
        (200, TEXT + END, "ab", False, "ended early"),
        (503, b"", "", False, "status 503"),
    ],
)
def test_a_stream_is_whole_only_with_its_finish_reason_and_its_end(
    status: int, body: bytes, text: str, whole: bool, error: str
) -> None:
    seen = Stream()
    with served(status, body) as url:
        read_stream(url, {}, seen, lambda: None)
    assert (seen.text, seen.whole, seen.error, len(seen.times_s)) == (text, whole, error, len(text))


def test_a_server_that_is_gone_is_an_error_of_the_stream() -> None:
    with served(200, b"") as url:
        pass
    seen = Stream()
    read_stream(url, {}, seen, lambda: None)
    assert seen.error == "ConnectionRefusedError"


def test_the_kill_comes_once_at_the_chosen_event() -> None:
    kills = []
    with served(200, TEXT + END + DONE) as url:
        streams = run_streams(url, [{}] * 3, 4, lambda: kills.append(1))
    assert (len(kills), [each.text for each in streams]) == (1, ["ab"] * 3)


def test_a_gap_is_taken_around_the_kill_only() -> None:
    assert longest_gap(Stream(times_s=[1.0, 2.0, 5.0, 9.0]), 3.0) == 3.0
    assert longest_gap(Stream(times_s=[1.0, 2.0]), 3.0) == 0.0


def test_the_victim_is_a_descendant_with_these_words() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()", "the-victim"], stdin=subprocess.PIPE)
    try:
        assert find_victim(os.getpid(), "the-victim") == child.pid
        with pytest.raises(EngineError, match="nobody"):
            find_victim(os.getpid(), "nobody-has-this")
    finally:
        child.communicate()

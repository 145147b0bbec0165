"""A fixed number of cases pass of the targets that need a running server; answers are read as they come."""

from __future__ import annotations

import contextlib
import random

import pytest

from tests.fuzz.targets.engine_socket import EngineSocket
from tests.fuzz.targets.http_requests import HttpRequests, check_answers
from tests.fuzz.targets.live_server import LiveServer


@pytest.mark.system
def test_a_fixed_number_of_cases_pass_on_the_sockets_of_a_server() -> None:
    rng = random.Random(2024)
    with contextlib.closing(LiveServer()) as live:
        for target in (HttpRequests(live), EngineSocket(live)):
            assert sum(target.run(target.draw(rng)) for _ in range(2)) > 100
            assert target.finish()


ERROR = b'{"error": {"message": "m", "type": "t", "param": null, "code": "c"}}'


def answer(status: int, body: bytes, *lines: bytes) -> bytes:
    first = b"HTTP/1.1 %d Word" % status
    return b"\r\n".join((first, b"Content-Type: application/json", *lines, b"", body))


def test_answers_are_read_one_after_the_other() -> None:
    chunked = answer(200, b"2\r\n{}\r\n0\r\n\r\n", b"Transfer-Encoding: chunked")
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + answer(400, ERROR, b"Content-Length: %d" % len(ERROR))
    assert check_answers(data + chunked + answer(404, b"", b"Content-Length: 70")) == [400, 200, 404]


@pytest.mark.parametrize(
    "data",
    [
        answer(500, b"{}", b"Content-Length: 2"),
        answer(400, b'{"detail": 1}', b"Content-Length: 13"),
        answer(302, b""),
    ],
)
def test_a_wrong_answer_on_a_socket_is_noticed(data: bytes) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check_answers(data)

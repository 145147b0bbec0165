"""Bad input against the real server: the right status, OpenAI's error object, and nobody else notices."""

from __future__ import annotations

import json
import random
import socket

import httpx
import pytest
import zmq
from openai import OpenAI

from tests.system.processes import Server

pytestmark = pytest.mark.system

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}

# path, body, status, param (None: not checked)
CASES = [
    ("chat/completions", {**CHAT, "temperature": -1}, 400, "temperature"),
    ("chat/completions", {**CHAT, "temperature": "hot"}, 400, "temperature"),
    ("chat/completions", {**CHAT, "temperature": True}, 400, "temperature"),
    ("chat/completions", {**CHAT, "top_p": 0}, 400, "top_p"),
    ("chat/completions", {**CHAT, "top_p": 1.0001}, 400, "top_p"),
    ("chat/completions", {**CHAT, "top_k": -2}, 400, "top_k"),
    ("chat/completions", {**CHAT, "n": 0}, 400, "n"),
    ("chat/completions", {**CHAT, "n": 10**9}, 400, "n"),
    ("chat/completions", {**CHAT, "max_tokens": -1}, 400, "max_tokens"),
    ("chat/completions", {**CHAT, "max_tokens": 2**63}, 400, "max_tokens"),
    ("chat/completions", {**CHAT, "max_tokens": 10**6}, 400, None),
    ("chat/completions", {**CHAT, "min_tokens": 9}, 400, "min_tokens"),
    ("chat/completions", {**CHAT, "seed": 2**64}, 400, "seed"),
    ("chat/completions", {**CHAT, "presence_penalty": 1e30}, 400, "presence_penalty"),
    ("chat/completions", {**CHAT, "logit_bias": {"999999": 1}}, 400, "logit_bias"),
    ("chat/completions", {**CHAT, "logit_bias": {"x": 1}}, 400, None),
    ("chat/completions", {**CHAT, "logit_bias": {"1": 1e9}}, 400, "logit_bias"),
    ("chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    ("chat/completions", {**CHAT, "top_logprobs": 2}, 400, "top_logprobs"),
    ("chat/completions", {**CHAT, "stop": ""}, 400, None),
    ("chat/completions", {**CHAT, "stop": ["a"] * 10_000}, 400, None),
    ("chat/completions", {**CHAT, "stream_options": {"include_usage": True}}, 400, "stream_options"),
    ("chat/completions", {"messages": []}, 400, "messages"),
    ("chat/completions", {}, 400, "messages"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, None),
    ("chat/completions", {"messages": [{"role": "user", "content": "word " * 20_000}]}, 400, None),
    ("completions", {"prompt": ""}, 400, "prompt"),
    ("completions", {"prompt": []}, 400, "prompt"),
    ("completions", {"prompt": [10**7]}, 400, "prompt"),
    ("completions", {"prompt": [-1]}, 400, "prompt"),
    ("completions", {"prompt": [1] * 5000}, 400, None),
    ("completions", {"prompt": "x", "logprobs": 21}, 400, "logprobs"),
    ("completions", {"prompt": "x", "suffix": "y"}, 400, "suffix"),
    ("chat/completions", {**CHAT, "model": "no-such-model"}, 404, "model"),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), CASES, ids=[f"{i}" for i in range(len(CASES))])
def test_a_bad_field_is_named(
    server: Server, model: str, path: str, body: dict, status: int, param: str | None
) -> None:
    answer = httpx.post(f"{server.base_url}/{path}", json={"model": model, **body}, timeout=30)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if param is not None:
        assert error["param"] is not None
        assert error["param"].startswith(param), error


RAW_BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'{"model": "m", "messages": NaN}',
    b'{"temperature": NaN, "messages": [{"role": "user", "content": "x"}]}',
    b'{"temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}',
    b'{"temperature": Infinity, "messages": [{"role": "user", "content": "x"}]}',
    b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"x": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
]


@pytest.mark.parametrize("body", RAW_BODIES, ids=[f"{i}" for i in range(len(RAW_BODIES))])
def test_a_malformed_body_is_a_400(server: Server, body: bytes) -> None:
    answer = httpx.post(
        f"{server.base_url}/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
        timeout=30,
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_oversized_body_is_a_413(server: Server) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * (5 << 20)}]}).encode()
    answer = httpx.post(
        f"{server.base_url}/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
        timeout=30,
    )
    assert answer.status_code == 413
    assert "error" in answer.json()


def test_context_overflow_names_the_limit_and_what_was_asked(server: Server, model: str) -> None:
    answer = httpx.post(
        f"{server.base_url}/completions",
        json={"model": model, "prompt": [1] * 100, "max_tokens": 2000},
        timeout=30,
    )
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "context_length_exceeded"
    for number in ("2048", "100", "2000"):
        assert number in error["message"]


def test_unknown_routes_and_methods_have_the_same_shape(server: Server) -> None:
    assert httpx.get(f"{server.base_url}/nothing").status_code == 404
    assert httpx.get(f"{server.base_url}/chat/completions").status_code == 405
    for answer in (httpx.get(f"{server.base_url}/nothing"), httpx.get(f"{server.base_url}/chat/completions")):
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_broken_http_does_not_end_the_server(server: Server) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    for raw in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_garbage_on_the_engine_socket_disturbs_no_stream(server: Server, client: OpenAI, model: str) -> None:
    options = {
        "model": model,
        "messages": [{"role": "user", "content": "Count from 1 to 20."}],
        "temperature": 0,
        "max_tokens": 200,
        "extra_body": {"ignore_eos": True},
    }
    expected = client.chat.completions.create(**options).choices[0].message.content
    rng = random.Random(5)
    text = ""
    context = zmq.Context()
    try:
        peer = context.socket(zmq.DEALER)
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(server.address)
        for chunk in client.chat.completions.create(stream=True, **options):
            text += chunk.choices[0].delta.content or ""
            frames = [rng.randbytes(rng.choice([0, 1, 3, 50, 2000])) for _ in range(rng.choice([1, 1, 2, 5]))]
            peer.send_multipart(frames)
            peer.send(b"\x91" * 900)
    finally:
        context.destroy(linger=0)
    assert text == expected
    assert server.engine.popen.poll() is None

"""Valid HTTP requests to every route as bytes, and how they are changed: head, framing and body."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from tests.fuzz.mutation.bodies import PATHS, bodies
from tests.fuzz.mutation.formats import mutate_json
from tests.fuzz.mutation.raw import mutate_bytes

GETS = (
    *("/live", "/health", "/ready", "/ping", "/load", "/version", "/debug/requests", "/debug/requests/x"),
    *("/metrics", "/v1/models", "/v1/models/m", "/docs", "/openapi.json", "/nothing", "/tokenizer_info"),
    *("/v1/completions", "/", "//live", "/v1/models/..%2f..%2fetc", "/live?x=%00", "*"),
)
_METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "CONNECT", "POST", "PRI", "get")
_HEADERS = (
    *(
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Content-Length: 5",
        "Content-Length: -1",
    ),
    *(
        "Content-Length: 99999999999999999999",
        "Content-Length: 0x10",
        "Content-Encoding: gzip",
        "Expect: 100-continue",
    ),
    *(
        "Host: a",
        "Host: a b",
        "Host: x@y/../",
        "Upgrade: websocket",
        "Connection: upgrade",
        "Connection: close",
    ),
    *("Connection: keep-alive", "Authorization: Bearer x", "Content-Type: text/plain", "X-Request-Id: \x7f"),
    *(
        "Content-Type: application/json; charset=utf-16",
        "Cookie: " + "c" * 3000,
        "X: " + "y" * 17000,
        "Origin: null",
    ),
    *(
        "Trailer: X",
        "Range: bytes=0-1",
        "Accept: */*;q=NaN",
        "X-Request-Id: " + "i" * 500,
        " Folded: 1",
        "NoColon",
    ),
)


def requests() -> list[bytes]:
    """One of every kind."""
    gets = [head("GET", path) for path in GETS]
    posts = [post(path, body) for path, kind in zip(PATHS, bodies(), strict=True) for body in kind]
    long = json.dumps({"prompt": [65] * 40, "max_tokens": 300, "ignore_eos": True, "stream": True}).encode()
    return [*gets, *posts, post("/v1/completions", long), post("/v1/completions", long, chunked=True)]


def head(method: str, path: str, *lines: str) -> bytes:
    """The head of a request, with its blank line."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", "")).encode("latin-1")


def post(path: str, body: bytes, *, chunked: bool = False) -> bytes:
    """A whole POST request."""
    kind = "Content-Type: application/json"
    if not chunked:
        return head("POST", path, kind, f"Content-Length: {len(body)}") + body
    cut = len(body) // 2
    parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
    return head("POST", path, kind, "Transfer-Encoding: chunked") + parts + b"0\r\n\r\n"


def mutate_request(rng: Random, request: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return one request changed: most often its body, which it then frames rightly."""
    beginning, _, body = request.partition(b"\r\n\r\n")
    lines = beginning.decode("latin-1").split("\r\n")
    kind = rng.random()
    if body and kind < 0.55:
        path = lines[0].split(" ")[1] if " " in lines[0] else "/"
        return post(path, mutate_json(rng, body, [body]), chunked=rng.random() < 0.1)
    if kind < 0.8:
        return _with_lines(rng, lines) + body
    if kind < 0.9:
        return request + corpus[int(rng.random() * len(corpus))]
    return mutate_bytes(rng, request, corpus[int(rng.random() * len(corpus))])


def _with_lines(rng: Random, lines: list[str]) -> bytes:
    for _ in range(1 + int(rng.random() * 3)):
        place = 1 + int(rng.random() * len(lines))
        kind = rng.random()
        if kind < 0.5:
            lines.insert(place, _HEADERS[int(rng.random() * len(_HEADERS))])
        elif kind < 0.6 and place < len(lines):
            del lines[place]
        elif kind < 0.75:
            _, _, rest = lines[0].partition(" ")
            lines[0] = f"{_METHODS[int(rng.random() * len(_METHODS))]} {rest}"
        elif kind < 0.85:
            lines[0] = lines[0].replace("1.1", rng.choice(("1.0", "0.9", "2.0", "9.9", "")))
        elif kind < 0.9:
            lines += ["X: y"] * int(rng.random() * 120)
        else:
            lines[place - 1] = mutate_bytes(rng, lines[place - 1].encode("latin-1")).decode("latin-1")
    return "\r\n".join((*lines, "", "")).encode("latin-1")

"""Mutated bodies on the HTTP application, in process, over an engine pool that answers as scripted.

A piece of a case is a byte that says which route it goes to (the index in PATHS), then the body.
"""

from __future__ import annotations

import asyncio
from random import Random

from starlette.types import Message

from splitserve.frontend.app import create_app
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from tests.frontend.http.app_fixtures import make_config, with_body_writers
from tests.frontend.http.fake_pool import FakePool
from tests.fuzz.answers import check_answer
from tests.fuzz.case import Case
from tests.fuzz.mutation.bodies import PATHS, bodies
from tests.fuzz.mutation.formats import mutate_json

PIECES_PER_CASE = 32


class Bodies:
    """See the module."""

    what = "bodies"

    def __init__(self) -> None:
        self._corpora = bodies()
        self._runner = asyncio.Runner()
        self._pool = self._runner.run(_make_pool())
        self._app = with_body_writers(create_app(make_config(), self._pool))

    def draw(self, rng: Random) -> Case:
        return [self._piece(rng) for _ in range(PIECES_PER_CASE)]

    def _piece(self, rng: Random) -> bytes:
        number = int(rng.random() ** 2 * len(PATHS))
        corpus = self._corpora[number]
        return self.mutate(rng, bytes((number,)) + corpus[int(rng.random() * len(corpus))])

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        number = piece[0] % len(PATHS) if piece else 0
        return bytes((number,)) + mutate_json(rng, piece[1:], self._corpora[number])

    def run(self, case: Case) -> int:
        try:
            self._runner.run(self._run(case))
        finally:
            self._pool.seen.clear()
            self._pool.closed.clear()
            if self._pool.template is not None:
                self._pool.template.calls.clear()
        return len(case)

    async def _run(self, case: Case) -> None:
        for piece in case:
            number = piece[0] % len(PATHS) if piece else 0
            check_answer(*await self._ask(PATHS[number], piece[1:]))

    async def _ask(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        """Return status, content type and body of an answer."""
        told = [{"type": "http.request", "body": body, "more_body": False}]
        heard: list[Message] = []
        gone = asyncio.Event()

        async def receive() -> Message:
            if told:
                return told.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            heard.append(message)

        await self._app(scope(path, len(body)), receive, send)
        head = heard[0]
        kind = dict(head["headers"]).get(b"content-type", b"").decode()
        return head["status"], kind, b"".join(message.get("body", b"") for message in heard[1:])

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        self._runner.close()


async def _make_pool() -> FakePool:
    pool = FakePool()
    pool.formats = with_overrides(AnswerFormats(), "think", "hermes")
    return pool


def scope(path: str, num_body_bytes: int) -> dict[str, object]:
    """What a server says of a POST request."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(num_body_bytes).encode())]
    return {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST"},
        **{"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http"},
        **{"headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {}},
    }

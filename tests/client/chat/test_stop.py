"""Ctrl-C stops an answer and keeps what has come."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from splitserve.client.chat.answering import show_answer
from tests.client.scripted_server import STREAM_HEAD, chunk, scripted

BEGUN = b'{"choices": [{"delta": {"content": "begun"}}]}'


async def test_ctrl_c_ends_the_answer_and_keeps_what_came(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = asyncio.Event()
    monkeypatch.setattr("splitserve.client.chat.screen.Screen.show", _noting(shown))
    # The answer never ends by itself: its length is never reached.
    head = STREAM_HEAD.replace(b"Connection: close", b"Content-Length: 100000")
    never = asyncio.Event()
    async with scripted(lambda _: [head, chunk(BEGUN)], closes_after=never) as api:
        answer = asyncio.ensure_future(show_answer(api, "/v1/x", {}, can_stop=True))
        await shown.wait()
        os.kill(os.getpid(), signal.SIGINT)
        assert await answer == "begun"
        never.set()
    assert capsys.readouterr().out == "begun\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _noting(shown: asyncio.Event) -> object:
    from splitserve.client.chat.screen import Screen

    show = Screen.show

    def noted(self: Screen, piece: object) -> None:
        show(self, piece)  # type: ignore[arg-type]
        shown.set()

    return noted

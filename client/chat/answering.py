"""One answer: asked for, shown as it comes, stopped by Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys

from splitserve.client.chat.pieces import stream_pieces
from splitserve.client.chat.screen import Screen
from splitserve.client.http.api import Api


async def show_answer(api: Api, path: str, body: dict[str, object], *, can_stop: bool) -> str:
    """Ask, write the answer to stdout as it comes, and return its content.

    Args:
        api: of the server.
        path: of chats or completions.
        body: of the request.
        can_stop: Ctrl-C ends the answer, not the program.

    Raises:
        ApiError: the request is refused, or the answer ends with an error.
    """
    screen = Screen(sys.stdout, is_terminal=sys.stdout.isatty())
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(_show(screen, api, path, body))
    if can_stop:
        loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not can_stop or not task.cancelled():
            raise
    finally:
        if can_stop:
            loop.remove_signal_handler(signal.SIGINT)
        task.cancel()
        screen.end()
    return screen.content


async def _show(screen: Screen, api: Api, path: str, body: dict[str, object]) -> None:
    async for piece in stream_pieces(api, path, body):
        screen.show(piece)

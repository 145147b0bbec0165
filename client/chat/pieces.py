"""What comes of an answer, piece by piece, from a chat or a completion."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from splitserve.client.http.answers import Chunk
from splitserve.client.http.api import Api
from splitserve.client.http.errors import ApiError

_decoder = msgspec.json.Decoder(Chunk)


class Piece(NamedTuple):
    """A part of an answer: reasoning, content, or both."""

    reasoning: str
    content: str


async def stream_pieces(api: Api, path: str, body: dict[str, object]) -> AsyncIterator[Piece]:
    """Ask for a streamed answer and yield its pieces.

    Args:
        api: of the server.
        path: of chats or completions.
        body: of the request, without `stream`.

    Raises:
        ApiError: the request is refused, or the answer ends with an error.
    """
    async for arrival in api.stream(path, msgspec.json.encode({**body, "stream": True})):
        for event in arrival.events:
            try:
                chunk = _decoder.decode(event)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ApiError(f"an event that is not as OpenAI's: {error}") from None
            if chunk.error is not None:
                raise ApiError(chunk.error.message or "the answer ended with an error")
            for choice in chunk.choices[:1]:
                thought = choice.delta.thought if choice.delta else ""
                content = choice.text or (choice.delta.content if choice.delta else "") or ""
                if thought or content:
                    yield Piece(thought, content)

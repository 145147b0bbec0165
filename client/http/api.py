"""One server's API: JSON in and out, and streams of events, over kept connections."""

from __future__ import annotations

import email.utils
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from splitserve.client.http.address import Address
from splitserve.client.http.answers import ErrorBody
from splitserve.client.http.errors import ApiError
from splitserve.client.http.event_reader import EventReader

T = TypeVar("T")
READ_BYTES = 2**16
MAX_ERROR_BYTES = 2**16
CONNECT_TIMEOUT_S = 30.0
# Less than servers wait: a request on a connection that is being closed fails.
KEEP_ALIVE_S = 3.0
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """Events that came together.

    Attributes:
        at_s: when (time.perf_counter).
        events: their data.
    """

    at_s: float
    events: list[bytes]


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorBody | str | None = None
    detail: object = None


class Api:
    """A server's API; use it in an `async with` block, on one event loop.

    Args:
        address: of the server.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        address = self._address
        connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(address.socket_path, limit=0, keepalive_timeout=KEEP_ALIVE_S)
            if address.socket_path
            else aiohttp.TCPConnector(limit=0, ssl=address.verifies, keepalive_timeout=KEEP_ALIVE_S)
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=address.headers,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=address.timeout_s
            ),
            trust_env=urlsplit(address.url).hostname not in LOOPBACK,
            read_bufsize=READ_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def path(self, endpoint: str) -> str:
        """Return the path of an endpoint of OpenAI's API, such as "/models"."""
        return self._address.prefix + endpoint

    async def get(self, path: str, answer: type[T]) -> T:
        """Return a JSON answer; raises ApiError."""
        return _decoded(await self.get_bytes(path), answer)

    async def get_bytes(self, path: str) -> bytes:
        """Return the body of an answer; raises ApiError."""
        async with self._request("GET", path) as response:
            return await response.read()

    async def post(self, path: str, body: bytes) -> bytes:
        """Send JSON and return the body of the answer; raises ApiError."""
        async with self._request("POST", path, body) as response:
            return await response.read()

    async def stream(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Arrival]:
        """Send JSON and yield the events of the answer as they come.

        Raises:
            ApiError: also if the connection is lost before the answer's end. An event that tells of an error
                is yielded like all others.
        """
        reader = EventReader()
        async with self._request("POST", path, body, headers) as response:
            async for data in response.content.iter_any():
                at_s = time.perf_counter()
                events = reader.feed(data)
                if events:
                    yield Arrival(at_s, events)

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None, "used outside of its `async with` block"
        kind = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, self._address.url + path, data=body, headers={**kind, **(headers or {})}
            ) as response:
                if response.status >= 300:
                    raise await _refusal(response)
                yield response
        except aiohttp.ClientError as error:
            raise ApiError(f"{self._address.url}: {self._reason(error)}") from None
        except TimeoutError:
            raise ApiError(f"{self._address.url}: no answer in {self._address.timeout_s:g} s") from None

    def _reason(self, error: aiohttp.ClientError) -> str:
        if not isinstance(error, aiohttp.ClientConnectorError) or isinstance(error, aiohttp.ClientSSLError):
            return str(error) or type(error).__name__
        # aiohttp's own words speak of TLS where there is none.
        where = f" to {self._address.socket_path}" if self._address.socket_path else ""
        return f"no connection{where}: {_words(error.os_error)}"


def _words(error: OSError) -> str:
    # Those of look-ups of names have numbers of their own.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


async def _refusal(response: aiohttp.ClientResponse) -> ApiError:
    raw = await response.content.read(MAX_ERROR_BYTES)
    try:
        answer = msgspec.json.decode(raw, type=_ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = _ErrorAnswer()
    match answer.error:
        case ErrorBody(message=message) if message:
            said = message
        case str(message):
            said = message
        case _:
            said = str(answer.detail or raw[:500].decode(errors="replace").strip() or response.reason)
    return ApiError(
        f"{response.status}: {said}",
        response.status,
        _retry_after_s(response.headers.get("Retry-After", "")),
        raw,
    )


def _retry_after_s(text: str) -> float:
    """Return the seconds of a Retry-After header, which is a number or a date; 0 for anything else."""
    if text.isdigit() and len(text) < 6:
        return float(text)
    date = email.utils.parsedate_tz(text)
    return max(0.0, email.utils.mktime_tz(date) - time.time()) if date else 0.0


def _decoded(raw: bytes, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"an answer that is not as OpenAI's: {error}") from None

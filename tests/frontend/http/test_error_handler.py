"""Errors of the server are warned of by kind and interval, and told in full on each request's own line."""

from __future__ import annotations

import logging

import httpx
import pytest
from starlette.requests import Request

from splitserve.engine_core.errors import EngineRequestError, EngineUnavailableError, InvalidRequestError
from splitserve.frontend.http.error_handler import WARN_INTERVAL_S, ErrorHandler
from tests.frontend.http.fake_pool import FakePool


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def fail(handler: ErrorHandler, error: Exception, times: int = 1) -> dict:
    for _ in range(times):
        request = Request({"type": "http", "state": {"log": {}}})
        response = await handler.handle(request, error)
        assert response.status_code == error.status  # type: ignore[attr-defined]
    return request.state.log


async def test_an_interval_has_one_warning_of_a_code_and_the_next_one_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 5.0
    handler = ErrorHandler(lambda: now_s)
    await fail(handler, EngineUnavailableError("engine a is lost"), 100)
    assert warnings(caplog) == ['request_error code=engine_unavailable count=1 detail="engine a is lost"']
    await fail(handler, EngineRequestError("oops"))
    assert warnings(caplog)[1:] == ["request_error code=request_failed count=1 detail=oops"]
    now_s += WARN_INTERVAL_S
    await fail(handler, EngineUnavailableError("engine a is loading"), 2)
    assert warnings(caplog)[2:] == [
        'request_error code=engine_unavailable count=100 detail="engine a is loading"'
    ]


async def test_each_request_has_code_and_words_on_its_own_line() -> None:
    handler = ErrorHandler(lambda: 0.0)
    for words in ("a", "b"):
        assert await fail(handler, EngineUnavailableError(words)) == {
            "code": "engine_unavailable",
            "detail": words,
        }


async def test_a_mistake_of_the_client_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert await fail(ErrorHandler(), InvalidRequestError("n must be 1 to 16", "n")) == {}
    assert warnings(caplog) == []


async def test_requests_to_an_engine_that_is_down_give_one_warning(
    client: httpx.AsyncClient, pool: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    pool.state = "loading"
    with caplog.at_level(logging.INFO, "frontend"):
        for _ in range(5):
            assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 503
    assert len(warnings(caplog)) == 1
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == 5
    assert all("status=503" in line and "is loading" in line for line in lines)

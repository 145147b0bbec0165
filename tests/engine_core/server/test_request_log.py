"""The level of a request's line: what made a vector is one of many, all others count."""

from __future__ import annotations

import logging

import pytest

from splitserve.engine_core.ipc.transport import SendResult
from splitserve.engine_core.request import RequestSummary
from splitserve.engine_core.server.frontends import FrontendTable
from splitserve.engine_core.server.request_log import RequestLog


@pytest.mark.parametrize(
    ("pools", "outcome", "level"),
    [
        (False, "length", logging.INFO),
        (True, "length", logging.DEBUG),
        (True, "abort", logging.INFO),
        (True, "error", logging.INFO),
    ],
)
def test_inputs_that_made_vectors_are_logged_for_debugging_only(
    caplog: pytest.LogCaptureFixture, pools: bool, outcome: str, level: int
) -> None:
    caplog.set_level(logging.DEBUG)
    log = RequestLog(FrontendTable(lambda identity, frame: SendResult.SENT, 10.0))
    log.pools = pools
    log.ended(RequestSummary("r1", b"a", outcome, 3, 0, 0, 0, 0.0, 0.1))
    (record,) = caplog.records
    assert (record.levelno, record.name) == (level, "engine_core")

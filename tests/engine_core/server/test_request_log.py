"""The level of a request's line: what made a vector is one of many, all others count."""

from __future__ import annotations

import logging

import msgspec
import pytest

from splitserve.engine_core.ipc.transport import SendResult
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.request import RequestSummary
from splitserve.engine_core.server.frontends import FrontendTable
from splitserve.engine_core.server.request_log import RequestLog

MODEL = ModelInfo("m", "LlamaForCausalLM", "bfloat16", 1000, 1000, [2])
EMBEDS = msgspec.structs.replace(MODEL, embedding_size=8)
CLASSIFIES = msgspec.structs.replace(MODEL, labels=["good", "bad"])


@pytest.mark.parametrize(
    ("model", "outcome", "level"),
    [
        (MODEL, "length", logging.INFO),
        (EMBEDS, "length", logging.DEBUG),
        (EMBEDS, "abort", logging.INFO),
        (EMBEDS, "error", logging.INFO),
        (CLASSIFIES, "length", logging.DEBUG),
    ],
)
def test_inputs_that_made_vectors_are_logged_for_debugging_only(
    caplog: pytest.LogCaptureFixture, model: ModelInfo, outcome: str, level: int
) -> None:
    caplog.set_level(logging.DEBUG)
    log = RequestLog(FrontendTable(lambda identity, frame: SendResult.SENT, 10.0))
    log.serve(model)
    log.ended(RequestSummary("r1", b"a", outcome, 3, 0, 0, 0, 0.0, 0.1))
    (record,) = caplog.records
    assert (record.levelno, record.name) == (level, "engine_core")

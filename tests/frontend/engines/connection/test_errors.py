"""Whatever an engine says of a failed request, the client gets an HTTP status and a code that exist."""

from __future__ import annotations

import math

import pytest

from splitserve.engine_core.errors import OverloadedError
from splitserve.engine_core.ipc.messages import Finished, FinishReason, Rejected
from splitserve.frontend.engines.connection.errors import finished_error, rejected_error
from splitserve.frontend.http.errors import error_response


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (0, "overloaded"),
        (200, "ok"),
        (-(2**63), "x"),
        (999, "x"),
        (400, ""),
        (400, "Not One"),
        (503, "a" * 65),
    ],
)
def test_what_is_no_error_of_ours_is_a_failed_request(status: int, code: str) -> None:
    error = rejected_error(Rejected(1, status, code, "words"))
    assert (error.status, error.code) == (500, "request_failed")
    assert error_response(error).status_code == 500


def test_a_sequence_that_ends_with_a_wrong_status_has_failed() -> None:
    error = finished_error(Finished(1, FinishReason.ERROR, error_code="x", error_status=-1))
    assert error is not None
    assert (error.status, error.code) == (500, "request_failed")


@pytest.mark.parametrize(
    ("asked", "header"), [(math.nan, "1"), (math.inf, "1"), (-5.0, "1"), (2.6, "3"), (1e300, "3600")]
)
def test_retry_after_is_a_number_of_seconds_whatever_the_engine_says(asked: float, header: str) -> None:
    error = rejected_error(Rejected(1, 429, "overloaded", "full", None, asked))
    assert isinstance(error, OverloadedError)
    assert error_response(error).headers["retry-after"] == header

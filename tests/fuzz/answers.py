"""Is what a client got an answer as the documentation has it? Statuses, error objects, whole JSON."""

from __future__ import annotations

import json

# docs/api.md without 500: no input may lead there.
STATUSES = frozenset({200, 400, 401, 403, 404, 405, 408, 413, 415, 426, 429, 431, 501, 503, 504})
# Of OpenAI's error object.
ERROR_KEYS = {"message", "type", "param", "code"}
# Of the Messages API's.
ANTHROPIC_KEYS = {"type", "message"}
BUGS = ("internal_error", "request_failed")


def check_answer(status: int, kind: str, body: bytes) -> None:
    """Check a whole answer.

    Args:
        status: of the answer.
        kind: its content type.
        body: all of it.

    Raises:
        AssertionError: names what is wrong.
    """
    assert status in STATUSES, f"status {status}: {body[:2000]!r}"
    if kind.startswith("text/event-stream"):
        check_events(body)
    elif kind.startswith("application/json") and body:
        check_error(json.loads(body), is_error=status >= 400)


def check_error(value: object, *, is_error: bool) -> None:
    """Check one JSON value that may be, or has to be, an error."""
    # A response says that it has no error.
    if not is_error and not (isinstance(value, dict) and value.get("error") is not None):
        return
    assert isinstance(value, dict), value
    # A probe of a server that is not ready says so in its own words.
    if "error" not in value and "status" in value:
        return
    error = value["error"]
    if value.get("type") == "error":
        assert set(error) == ANTHROPIC_KEYS, error
        assert error["message"], error
        assert error["type"] != "api_error", error
        return
    assert set(error) == ERROR_KEYS, error
    assert error["message"], error
    assert error["code"] not in BUGS, error


def check_events(body: bytes) -> None:
    """Check a stream that may have been cut anywhere."""
    events = body.split(b"\n\n")[:-1]
    for event in events:
        if event.startswith(b"data: {"):
            check_error(json.loads(event[6:]), is_error=False)

"""What is logged of a request's body and its answer, for operators who ask for it with --log-requests.

    redacted    the body without its texts: numbers, switches, some names, and how long the rest is
    full        the body and the generated text

Authorization is in headers, of which nothing is logged. In a body, fields that hold credentials never are.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from splitserve.engine_core.process.logs import Whole, log_event

logger = logging.getLogger("frontend")

MAX_LOGGED_CHARS = 65_536
# Fields whose text is one of few words, or a name that is in the log anyway.
_NAMES = frozenset(
    (
        "model",
        "role",
        "type",
        "task",
        "effort",
        "detail",
        "truncation",
        "tool_choice",
        "service_tier",
        "encoding_format",
        "reasoning_effort",
        "truncation_side",
        "output_dtype",
    )
)
_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,128}", re.ASCII)
# Fields with fields of ours. Elsewhere the keys are the client's words, too: metadata, schemas, biases.
_OPENED = frozenset(
    (
        "messages",
        "input",
        "content",
        "tools",
        "stream_options",
        "response_format",
        "reasoning",
        "text",
        "format",
    )
)
_MAX_ITEMS = 64
# Never logged; a salt keeps others from finding out what was asked before.
_CREDENTIALS = frozenset(
    (
        "authorization",
        "api_key",
        "api-key",
        "apikey",
        "x-api-key",
        "access_token",
        "client_secret",
        "password",
        "secret",
        "cookie",
        "headers",
        "cache_salt",
    )
)
_HIDDEN = "<hidden>"


def log_body(mode: str, request_id: str, path: str, fields: dict[str, Any]) -> None:
    """Log the body of a request; nothing with mode "none".

    Args:
        mode: of --log-requests.
        request_id: of the line that is logged at the request's end.
        path: that was asked.
        fields: of the body, as received.
    """
    if mode != "none":
        shown = _without_credentials(fields) if mode == "full" else _redacted(fields)
        text = json.dumps(shown, ensure_ascii=False)
        log_event(logger, logging.INFO, "request body", request_id=request_id, path=path, body=_bounded(text))


class AnswerLog:
    """Collects the text of a request's completions, each up to MAX_LOGGED_CHARS, and logs it at the end."""

    def __init__(self, request_id: str, num_choices: int) -> None:
        """Start without text."""
        self._request_id = request_id
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._room = [MAX_LOGGED_CHARS] * num_choices

    def add(self, choice_idx: int, text: str) -> None:
        """Append what a completion has said; later parts beyond the limit are left out."""
        if self._room[choice_idx] >= 0:
            self._room[choice_idx] -= len(text)
            self._texts[choice_idx].append(text)

    def write(self) -> None:
        """Log one event per completion."""
        for i, parts in enumerate(self._texts):
            log_event(
                logger,
                logging.INFO,
                "response text",
                request_id=self._request_id,
                choice=i,
                text=_bounded("".join(parts)),
            )


def _bounded(text: str) -> Whole:
    return Whole(text if len(text) <= MAX_LOGGED_CHARS else text[:MAX_LOGGED_CHARS] + "...")


def _without_credentials(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: _HIDDEN if str(key).lower() in _CREDENTIALS else _without_credentials(each)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_without_credentials(each) for each in value]
    return value


def _redacted(fields: dict[str, Any]) -> dict[str, object]:
    """Return the fields without anybody's words; names of fields that we do not know are words, too."""
    shown = {
        name: _shown(name, value)
        for name, value in list(fields.items())[:_MAX_ITEMS]
        if _NAME.fullmatch(name)
    }
    num_hidden = len(fields) - len(shown)
    return shown | ({"...": f"{num_hidden} fields"} if num_hidden else {})


def _shown(name: str, value: object) -> object:
    if name.lower() in _CREDENTIALS:
        return _HIDDEN
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value if name in _NAMES and _NAME.fullmatch(value) else f"<{len(value)} characters>"
    if isinstance(value, dict):
        return _redacted(value) if name in _OPENED else f"<{len(value)} fields>"
    assert isinstance(value, list)
    if name in _OPENED and any(isinstance(each, dict) for each in value):
        shown = [
            _redacted(each) if isinstance(each, dict) else _shown(name, each) for each in value[:_MAX_ITEMS]
        ]
        return shown + ([f"<{len(value) - len(shown)} more>"] if len(value) > len(shown) else [])
    return f"<{len(value)} items>"

"""--log-requests: nobody's words unless they are asked for, and never a credential."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from splitserve.engine_core.process.logs import JsonFormatter
from splitserve.frontend.observability import logged_text
from tests.frontend.http.app_fixtures import ClientFactory

SECRETS = {"authorization": "hush-1", "headers": {"X-Key": "hush-2"}}
WORDS = "private words"
CHAT: dict[str, Any] = {
    "model": "org/demo",
    "messages": [
        {"role": "system", "content": WORDS},
        {"role": "user", "content": [{"type": "text", "text": WORDS}], "name": "private-name"},
    ],
    "tools": [{"type": "function", "function": {"name": "private_tool", "parameters": {"private": 1}}}],
    "tool_choice": "none",
    "max_tokens": 3,
    "temperature": 0.5,
    "stop": [WORDS],
    "logit_bias": {"65": 1},
    "metadata": {"private-key": WORDS},
    "user": "private-user",
    "cache_salt": "hush-3",
    "odd field!": 1,
}
BAD = {"prompt": "x", "suffix": "y"}
COMPLETION = {"prompt": WORDS, "max_tokens": 3, "cache_salt": "hush-3", "seed": 7}


class Records(logging.Handler):
    """What the frontend logs, as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [each for each in map(json.loads, self.lines) if each.get("event") == name]


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Any:
    handler = Records()
    logger = logging.getLogger("frontend")
    logger.addHandler(handler)
    caplog.set_level(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"authorization": "Bearer hush-4", "x-api-key": "hush-5", "x-request-id": "r1"}
    return await client.post(path, json=body, headers=headers)


@pytest.mark.parametrize("mode", ["none", "redacted"])
@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
async def test_no_words_are_logged_unless_asked_for(
    make_client: ClientFactory, records: Records, mode: str, path: str, body: dict[str, Any]
) -> None:
    for stream in (False, True):
        response = await ask(make_client(log_requests=mode), path, body | {"stream": stream})
        assert response.status_code == 200, response.text
    text = "\n".join(records.lines)
    assert "r1" in text
    for word in ("private", "hush", "Hi there"):
        assert word not in text
    assert len(records.events("request body")) == (0 if mode == "none" else 2)


async def test_a_redacted_body_shows_what_was_asked_for(make_client: ClientFactory, records: Records) -> None:
    await ask(make_client(log_requests="redacted"), "/v1/chat/completions", CHAT)
    (event,) = records.events("request body")
    assert (event["request_id"], event["path"]) == ("r1", "/v1/chat/completions")
    assert json.loads(event["body"]) == {
        "model": "org/demo",
        "messages": [
            {"role": "system", "content": "<13 characters>"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "<13 characters>"}],
                "name": "<12 characters>",
            },
        ],
        "tools": [{"type": "function", "function": "<2 fields>"}],
        "tool_choice": "none",
        "max_tokens": 3,
        "temperature": 0.5,
        "stop": "<1 items>",
        "logit_bias": "<1 fields>",
        "metadata": "<1 fields>",
        "user": "<12 characters>",
        "cache_salt": "<hidden>",
        "...": "1 fields",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_full_shows_body_and_answer_but_no_credentials(
    make_client: ClientFactory, records: Records, stream: bool
) -> None:
    body = CHAT | {"stream": stream, "mcp": SECRETS, "n": 2}
    await ask(make_client(log_requests="full"), "/v1/chat/completions", body)
    (event,) = records.events("request body")
    logged = json.loads(event["body"])
    assert logged["messages"] == CHAT["messages"]
    assert logged["mcp"] == {"authorization": "<hidden>", "headers": "<hidden>"}
    answers = records.events("response text")
    assert [(each["request_id"], each["choice"], each["text"]) for each in answers] == [
        ("r1", 0, "Hi there"),
        ("r1", 1, "Hi there"),
    ]
    assert "hush" not in "\n".join(records.lines)


async def test_a_body_that_is_refused_is_logged_too(make_client: ClientFactory, records: Records) -> None:
    response = await ask(make_client(log_requests="redacted"), "/v1/completions", {"prompt": 1.5, "n": 0})
    assert response.status_code == 400
    assert records.events("request body") == []
    refused = await ask(
        make_client(log_requests="redacted"), "/v1/completions", {"prompt": "x", "suffix": "y"}
    )
    assert refused.status_code == 400
    assert len(records.events("request body")) == 1


async def test_what_is_logged_has_an_end(
    make_client: ClientFactory, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged_text, "MAX_LOGGED_CHARS", 20)
    await ask(make_client(log_requests="full"), "/v1/completions", {"prompt": "x" * 100})
    assert len(records.events("request body")[0]["body"]) == 23
    answer = logged_text.AnswerLog("r2", 1)
    for _ in range(100):
        answer.add(0, "12345")
    answer.write()
    assert records.events("response text")[-1]["text"] == "12345" * 4 + "..."


async def test_a_long_body_is_not_cut_as_other_values_are(
    make_client: ClientFactory, records: Records
) -> None:
    await ask(make_client(log_requests="full"), "/v1/completions", {"prompt": "x" * 1600})
    assert "x" * 1600 in records.events("request body")[0]["body"]

"""Asks one request over HTTP as a user's program would, and says what came of it."""

from __future__ import annotations

import asyncio
import enum
import json
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from tests.system.soak.catalogue import Ask, Delivery

# A request that takes longer is stuck: with the soak's load the longest takes a few seconds.
STUCK_S = 120.0
# Ends that a request may come to under load, by the error's code.
EXPECTED_ERRORS = ("timeout", "queue_timeout", "overloaded")


class End(enum.Enum):
    """How a request ended."""

    WHOLE = 0
    TIMED_OUT = 1
    REFUSED = 2
    HUNG_UP = 3


@dataclass
class Choice:
    """What a choice has so far; floats as they were written, so that equality is bitwise."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    def is_start_of(self, whole: Choice) -> bool:
        """Whether `whole` may be how this goes on."""
        return (
            whole.text.startswith(self.text)
            and whole.token_ids[: len(self.token_ids)] == self.token_ids
            and whole.logprobs[: len(self.logprobs)] == self.logprobs
        )


@dataclass
class Answer:
    """What a client has seen of one request.

    Attributes:
        choices: by index; with token ids only if it asked for them.
        num_tokens: of the prompt and of all choices, as the usage says; None if that did not come.
    """

    end: End = End.WHOLE
    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_logprobs: list[object] = field(default_factory=list)
    num_tokens: tuple[int, int] | None = None
    shows_token_ids: bool = True

    def take(self, payload: dict[str, Any]) -> None:
        """Add a whole answer or one event of a stream."""
        if "error" in payload:
            self._take_error(payload["error"])
            return
        if usage := payload.get("usage"):
            self.num_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        for part in payload["choices"]:
            choice = self.choices.setdefault(part["index"], Choice())
            choice.text += _text(part)
            choice.token_ids += part.get("token_ids") or []
            choice.logprobs += _logprobs(part.get("logprobs") or {})
            choice.finish_reason = part["finish_reason"] or choice.finish_reason
            self.prompt_logprobs += part.get("prompt_logprobs") or []

    def _take_error(self, error: dict[str, Any]) -> None:
        assert error["code"] in EXPECTED_ERRORS, error
        self.end = End.TIMED_OUT if error["code"] == "timeout" else End.REFUSED

    def agrees_with(self, alone: Answer) -> bool:
        """Whether this is the answer of the request alone, or the start of it if it was cut short."""
        if not self.shows_token_ids:
            shown = {index: replace(choice, token_ids=[]) for index, choice in alone.choices.items()}
            alone = replace(alone, choices=shown)
        if self.end is End.WHOLE:
            same_count = self.num_tokens in (None, alone.num_tokens)
            return (
                same_count and self.choices == alone.choices and self.prompt_logprobs == alone.prompt_logprobs
            )
        return all(choice.is_start_of(alone.choices[index]) for index, choice in self.choices.items())


async def ask_once(http: httpx.AsyncClient, ask: Ask, delivery: Delivery) -> Answer:
    """Send a request and read its answer, as far as this client wants it.

    Raises:
        AssertionError: an answer that no load excuses.
        TimeoutError: it is stuck.
        httpx.HTTPError: the connection broke.
    """
    body = {**ask.body, **delivery.extra, "stream": delivery.stream}
    answer = Answer(shows_token_ids=bool(delivery.extra["return_token_ids"]))
    async with asyncio.timeout(STUCK_S):
        if delivery.stream:
            await _read_stream(http, ask.path, body, delivery.hang_up_after, answer)
        else:
            await _read_whole(http, ask.path, body, delivery.hang_up_s, answer)
    return answer


async def _read_whole(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], hang_up_s: float, answer: Answer
) -> None:
    try:
        # Leaving the block cancels the request, which closes its connection.
        async with asyncio.timeout(hang_up_s or None):
            response = await http.post(path, json=body)
    except TimeoutError:
        if not hang_up_s:
            raise
        answer.end = End.HUNG_UP
        return
    answer.take(response.json())


async def _read_stream(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], hang_up_after: int, answer: Answer
) -> None:
    num_events = 0
    async with http.stream("POST", path, json=body) as response:
        if response.status_code != 200:
            answer.take(json.loads(await response.aread()))
            return
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                return
            if num_events == hang_up_after:
                answer.end = End.HUNG_UP
                return
            if line.startswith("data: "):
                num_events += 1
                answer.take(json.loads(line.removeprefix("data: ")))
    raise AssertionError("a stream ended without [DONE]")


def _text(part: dict[str, Any]) -> str:
    """The text of a choice of any kind: completion or chat, whole or an event."""
    if "text" in part:
        return str(part["text"])
    return (part.get("message") or part["delta"]).get("content") or ""


def _logprobs(logprobs: dict[str, Any]) -> list[float]:
    if "content" in logprobs:
        return [entry["logprob"] for entry in logprobs["content"]]
    return list(logprobs.get("token_logprobs", []))

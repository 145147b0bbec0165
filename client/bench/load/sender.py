"""How one request is sent, and its answer timed."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from splitserve.client.bench.datasets.sample import Messages, Sample
from splitserve.client.bench.load.measured import Measured
from splitserve.client.http.answers import Choice, Chunk
from splitserve.client.http.api import Api, Arrival
from splitserve.client.http.errors import ApiError

_decoder = msgspec.json.Decoder(Chunk)


class Sender:
    """Sends requests of one kind.

    Args:
        api: of the server.
        path: to ask.
        model: its name at the server.
        is_chat: whether chats are sent, else completions.
        fields: further fields of each request.
    """

    def __init__(
        self, api: Api, path: str, model: str, *, is_chat: bool, fields: Mapping[str, object]
    ) -> None:
        self._api = api
        self._path = path
        self._is_chat = is_chat
        self._fields = {"model": model, "stream": True, "stream_options": {"include_usage": True}, **fields}

    async def send(self, sample: Sample, history: Messages, queue_s: float = 0.0) -> Measured:
        """Send a request and read its answer to the end; what goes wrong is told in `error`.

        Args:
            sample: to send.
            history: messages before it.
            queue_s: how long it waited to be sent.
        """
        body = msgspec.json.encode(self._body(sample, history))
        seen = Measured(time.perf_counter(), queue_s, num_prompt_tokens=sample.num_prompt_tokens)
        try:
            async for arrival in self._api.stream(self._path, body):
                self._take(seen, arrival)
            if not seen.ttft_s:
                seen.error = "the answer had no token"
        except ApiError as error:
            seen.error = str(error)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            seen.error = f"an event that is not as OpenAI's: {error}"
        return seen

    def _body(self, sample: Sample, history: Messages) -> dict[str, object]:
        if not self._is_chat:
            return {**self._fields, "prompt": sample.prompt, "max_tokens": sample.max_tokens}
        own = as_messages(sample.prompt)
        return {
            **self._fields,
            "messages": [*history, *own],
            "max_completion_tokens": sample.max_tokens,
        }

    def _take(self, seen: Measured, arrival: Arrival) -> None:
        for event in arrival.events:
            chunk = _decoder.decode(event)
            if chunk.error is not None:
                raise ApiError(chunk.error.message or "the answer ended with an error")
            if chunk.usage is not None:
                seen.num_prompt_tokens = chunk.usage.prompt_tokens or seen.num_prompt_tokens
                seen.num_output_tokens = chunk.usage.completion_tokens or 0
            # As vLLM counts: with the event that only tells who speaks, which comes with the first token.
            if chunk.choices:
                _count(seen, chunk.choices[0], arrival.at_s)


def as_messages(prompt: str | Messages) -> Messages:
    """Return a prompt as messages of a chat."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _text(choice: Choice) -> str:
    delta = choice.delta
    return choice.text or (delta.thought + (delta.content or "") if delta else "")


def _count(seen: Measured, choice: Choice, at_s: float) -> None:
    since_start_s = at_s - seen.start_s
    if seen.ttft_s:
        seen.itls_s.append(since_start_s - seen.latency_s)
    else:
        seen.ttft_s = since_start_s
    seen.latency_s = since_start_s
    seen.text += _text(choice)

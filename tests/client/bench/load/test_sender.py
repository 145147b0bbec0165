"""Each event with tokens is timed once, and what goes wrong belongs to its request."""

from __future__ import annotations

import msgspec
import numpy as np

from splitserve.client.bench.datasets.sample import Sample
from splitserve.client.bench.load.measured import Measured
from splitserve.client.bench.load.run import Runner
from splitserve.client.bench.load.sender import Sender
from tests.client.scripted_server import STREAM_HEAD, Asked, answer, chunk, scripted

USAGE = chunk(b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}')
CHAT = [
    STREAM_HEAD,
    chunk(b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}'),
    chunk(b'{"choices": [{"delta": {"reasoning_content": "hm"}}]}'),
    chunk(b'{"choices": [{"delta": {"content": "yes"}}]}'),
    chunk(b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}'),
    USAGE,
    chunk(b"[DONE]"),
]


async def sent(pieces: list[bytes], *, is_chat: bool) -> Measured:
    async with scripted(lambda _: pieces) as api:
        sender = Sender(api, "/v1/x", "m", is_chat=is_chat, fields={})
        return await sender.send(Sample("hi", 5, 16), [])


async def test_the_first_event_of_a_chat_that_only_tells_who_speaks_counts_as_the_first() -> None:
    seen = await sent(CHAT, is_chat=True)
    assert seen.error == ""
    assert len(seen.itls_s) == 3
    assert seen.text == "hmyes"
    assert (seen.num_prompt_tokens, seen.num_output_tokens) == (7, 3)
    assert 0 < seen.ttft_s <= seen.latency_s
    assert abs(seen.ttft_s + sum(seen.itls_s) - seen.latency_s) < 1e-9


async def test_every_event_of_a_completion_counts_and_without_usage_the_client_counts() -> None:
    pieces = [STREAM_HEAD, *(chunk(b'{"choices": [{"text": "a"}]}') for _ in range(4))]
    seen = await sent(pieces, is_chat=False)
    assert (seen.text, len(seen.itls_s), seen.num_prompt_tokens) == ("aaaa", 3, 5)


async def test_errors_are_of_the_request() -> None:
    failing = {
        "400: no": [answer("400 Bad Request", b'{"error": {"message": "no"}}')],
        "the answer had no token": [STREAM_HEAD, USAGE],
        "gone": [
            STREAM_HEAD,
            chunk(b'{"choices": [{"text": "a"}]}'),
            chunk(b'{"error": {"message": "gone"}}'),
        ],
        "an event that is not as OpenAI's": [STREAM_HEAD, chunk(b"{")],
    }
    for said, pieces in failing.items():
        assert (await sent(pieces, is_chat=False)).error.startswith(said)


async def test_the_turns_of_a_conversation_carry_the_answers_before_them() -> None:
    bodies = []

    def script(asked: Asked) -> list[bytes]:
        bodies.append(msgspec.json.decode(asked.body))
        return CHAT

    ended: list[int] = []
    async with scripted(script) as api:
        sender = Sender(api, "/v1/x", "m", is_chat=True, fields={"temperature": 0})
        runner = Runner(sender, 1, lambda: ended.append(1))
        turns = tuple(Sample(text, 1, 8) for text in ("one", "two"))
        run = await runner.run([turns], np.zeros(1))
    assert [len(each["messages"]) for each in bodies] == [1, 3]
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": "hmyes"}
    assert bodies[1]["messages"][2] == {"role": "user", "content": "two"}
    assert bodies[0]["max_completion_tokens"] == 8
    assert bodies[0]["temperature"] == 0
    assert len(run.requests) == len(ended) == 2

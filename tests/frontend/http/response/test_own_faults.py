"""An exception in making one answer ends that answer with a typed error; answers beside it stay the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.openai.answers.chat_chunks import ChatWriter
from splitserve.frontend.openai.answers.usage import UsageCounter
from splitserve.frontend.openai.generation_run import CollectedChoice
from tests.frontend.http.fake_pool import FakePool, deltas_of, turns
from tests.frontend.http.response.sse_events import events, joined

BODY = {"messages": [{"role": "user", "content": "x"}]}
NUM_BESIDE = 3


def break_counting(patch: pytest.MonkeyPatch) -> None:
    """Fail where the tokens of any answer are counted, of whichever holds the 3rd delta."""
    _break_third(patch, UsageCounter, "add")


def break_chunks(patch: pytest.MonkeyPatch) -> None:
    _break_third(patch, ChatWriter, "chunk")


def break_collecting(patch: pytest.MonkeyPatch) -> None:
    _break_third(patch, CollectedChoice, "add")


def _break_third(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let the third call of the first object that is called raise."""
    real, calls = getattr(owner, name), list[object]()

    def broken(self: object, *args: Any) -> Any:
        calls.append(self)
        if self is calls[0] and sum(each is self for each in calls) == 3:
            raise ZeroDivisionError("/secret/file.py")
        return real(self, *args)

    patch.setattr(owner, name, broken)


async def slowly(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
    """Send each event by itself, so that streams have begun by the third."""
    for delta in deltas_of("Hi there", request):
        yield delta
        await turns()


async def ask(client: httpx.AsyncClient, *, stream: bool) -> Sequence[httpx.Response]:
    """Several requests at once, of which the first is the first to be served."""
    body = BODY | {"stream": stream}
    return await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(4)))


@pytest.mark.parametrize("breaks", [break_counting, break_chunks])
async def test_a_stream_gets_an_error_event_and_the_others_their_text(
    breaks: Any, client: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    pool.script = slowly
    answers = [events(response.text) for response in await ask(client, stream=True)]
    failed = [chunks for chunks in answers if "error" in chunks[-1]]
    assert [chunks[-1]["error"]["code"] for chunks in failed] == ["internal_error"]
    assert "secret" not in str(failed)
    assert "Hi there".startswith(joined(failed[0][:-1]))
    assert [joined(chunks) for chunks in answers if "error" not in chunks[-1]] == ["Hi there"] * NUM_BESIDE
    assert len(pool.closed) == 1 + NUM_BESIDE


@pytest.mark.parametrize("breaks", [break_counting, break_collecting])
async def test_a_whole_answer_is_500_and_the_others_are_whole(
    breaks: Any, client: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    answers = await ask(client, stream=False)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 500]
    for answer in answers:
        if answer.status_code == 500:
            assert answer.json()["error"]["code"] == "internal_error"
        else:
            assert answer.json()["choices"][0]["message"]["content"] == "Hi there"
    assert len(pool.closed) == 1 + NUM_BESIDE

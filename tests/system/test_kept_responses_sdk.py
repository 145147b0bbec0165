"""Kept responses as a user of the OpenAI SDK meets them: two frontends over one engine, one store."""

from __future__ import annotations

import contextlib
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from tests.system.processes import Process, Server, frontend, serve_command, wait_ready

pytestmark = pytest.mark.system

HELLO = "What is the capital of France?"
LONG = {"input": "Count from 1 to 20.", "max_output_tokens": 1500, "extra_body": {"ignore_eos": True}}


class Pair:
    """Two frontends, the process of the first, and the file that they share."""

    def __init__(self, urls: list[str], first: Process, place: Path) -> None:
        self.one, self.two = (
            OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=60) for url in urls
        )
        self.first = first
        self.place = place
        self.model = self.one.models.list().data[0].id

    def create(self, client: OpenAI, **options: Any) -> Response:
        return client.responses.create(model=self.model, **({"input": HELLO, "temperature": 0} | options))


@pytest.fixture(scope="module")
def pair(server: Server) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sst-")))
        place = folder / "responses.db"
        flags = ("--response-store", str(place))
        started = [stack.enter_context(frontend(folder, server.address, flags=flags)) for _ in range(2)]
        for url, process in started:
            wait_ready(url, process)
        found = Pair([url for url, _ in started], started[0][1], place)
        yield found
        found.one.close()
        found.two.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def until(find: Callable[[], Response], *statuses: str) -> Response:
    wait_for(lambda: find().status in statuses)
    return find()


def test_a_response_made_on_one_is_used_on_the_other(pair: Pair) -> None:
    made = pair.create(pair.one, metadata={"a": "b"})
    assert made.store is True
    found = pair.two.responses.retrieve(made.id)
    assert found.model_dump() == made.model_dump()
    Response.model_validate(found.model_dump())
    second = pair.create(pair.two, input="And of Italy?", previous_response_id=made.id)
    assert second.previous_response_id == made.id
    listed = list(pair.one.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.content[0].text for item in listed] == [HELLO, made.output_text, "And of Italy?"]
    sent_back = pair.create(
        pair.one,
        input=[
            {"role": "user", "content": HELLO},
            *made.output,
            {"role": "user", "content": "And of Italy?"},
        ],
    )
    assert second.output_text == sent_back.output_text
    assert second.usage.input_tokens == sent_back.usage.input_tokens
    pair.two.responses.delete(made.id)
    with pytest.raises(NotFoundError) as caught:
        pair.one.responses.retrieve(made.id)
    assert caught.value.message.endswith(f"Response with id '{made.id}' not found.")
    assert caught.value.code == "response_not_found"
    third = pair.create(pair.one, input="And of Spain?", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens
    assert {stat.S_IMODE(path.stat().st_mode) for path in pair.place.parent.glob("responses.db*")} == {0o600}


def test_streams_are_kept_too(pair: Pair) -> None:
    with pair.one.responses.stream(model=pair.model, input=HELLO, temperature=0) as stream:
        final = stream.get_final_response()
    assert final.store is True
    found = pair.two.responses.retrieve(final.id)
    assert (found.output_text, found.usage) == (final.output_text, final.usage)
    second = pair.create(pair.two, input="And of Italy?", previous_response_id=final.id)
    assert second.usage.input_tokens > final.usage.input_tokens


def test_a_parsed_response_is_kept(pair: Pair) -> None:
    class Answer(BaseModel):
        city: str

    made = pair.one.responses.parse(
        model=pair.model, input=HELLO, text_format=Answer, temperature=0, max_output_tokens=200
    )
    found = pair.two.responses.retrieve(made.id)
    assert found.output_text == made.output_text
    assert found.text.format.type == "json_schema"


def test_a_background_response_outlives_its_client(pair: Pair) -> None:
    made = pair.create(pair.one, background=True)
    assert (made.status, made.output) == ("queued", [])
    done = until(lambda: pair.two.responses.retrieve(made.id), "completed")
    assert "Paris" in done.output_text
    assert pair.create(pair.two, input="And of Italy?", previous_response_id=made.id).output_text


def test_a_background_response_is_cancelled_from_another_frontend(pair: Pair, server: Server) -> None:
    made = pair.create(pair.one, background=True, **LONG)
    until(lambda: pair.two.responses.retrieve(made.id), "in_progress")
    cancelled = pair.two.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    wait_for(lambda: not httpx.get(f"{server.url}/debug/requests", timeout=10).json()["requests"])
    assert pair.one.responses.retrieve(made.id).status == "cancelled"


def test_the_events_of_a_background_response_are_read_on_from_another_frontend(pair: Pair) -> None:
    stream = pair.create(pair.one, background=True, stream=True, input="Count from 1 to 20.")
    seen = [next(stream) for _ in range(5)]
    stream.close()
    response_id = seen[0].response.id
    seen += pair.two.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    final = seen[-1].response
    assert seen[-1].type == "response.completed"
    texts = [event.delta for event in seen if event.type == "response.output_text.delta"]
    assert "".join(texts) == final.output_text
    assert pair.one.responses.retrieve(response_id).output_text == final.output_text


def test_what_is_wrong_is_said_as_the_sdk_expects(pair: Pair) -> None:
    with pytest.raises(NotFoundError):
        pair.one.responses.retrieve("resp_none")
    with pytest.raises(BadRequestError) as caught:
        pair.create(pair.one, previous_response_id="resp_none")
    assert caught.value.code == "previous_response_not_found"
    made = pair.create(pair.one)
    with pytest.raises(BadRequestError, match="Cannot cancel a synchronous response"):
        pair.one.responses.cancel(made.id)
    with pytest.raises(BadRequestError) as caught:
        pair.one.responses.input_items.list(made.id, limit=101)
    assert caught.value.param == "limit"


@pytest.mark.slow
def test_serve_keeps_responses_until_it_ends(folder: Path) -> None:
    flags = ("--api-server-count", "2")
    with serve_command(folder / "serve.log", *flags, runtime_dir=str(folder)) as (url, process):
        wait_ready(url, process)
        with OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=3, timeout=60) as client:
            model = client.models.list().data[0].id
            made = client.responses.create(model=model, input=HELLO, temperature=0)
            assert made.store is True
        for _ in range(6):
            # Each connection may be another frontend's.
            with OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=3, timeout=60) as client:
                assert client.responses.retrieve(made.id).output_text == made.output_text
        assert list(folder.glob("splitserve/serve-*/responses.db"))
        assert process.stop() == 0
    assert not list(folder.glob("splitserve/*"))


@pytest.mark.slow
def test_a_server_that_is_killed_leaves_no_responses(folder: Path) -> None:
    with serve_command(folder / "serve.log", runtime_dir=str(folder)) as (url, process):
        wait_ready(url, process)
        with OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=60) as client:
            model = client.models.list().data[0].id
            assert client.responses.create(model=model, input=HELLO, temperature=0).store is True
        assert list(folder.glob("splitserve/serve-*/responses.db"))
        process.popen.kill()
        wait_for(lambda: not list(folder.glob("splitserve/*")))


@pytest.mark.slow
def test_what_a_killed_frontend_generated_has_failed(pair: Pair, server: Server, folder: Path) -> None:
    flags = ("--response-store", str(pair.place))
    with frontend(folder, server.address, flags=flags) as (url, process):
        wait_ready(url, process)
        with OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=60) as doomed:
            made = pair.create(doomed, background=True, **LONG)
        process.popen.kill()
    found = until(lambda: pair.one.responses.retrieve(made.id), "failed")
    assert found.error.code == "server_error"
    assert "has ended" in found.error.message

"""Batches as a user of OpenAI's SDK meets them, on one frontend and on several with one store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from openai import BadRequestError, ConflictError, NotFoundError

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.sequence_sampling import MAX_PRIORITY
from splitserve.frontend.batches.run import runner as runner_module
from splitserve.frontend.batches.store import batches as batches_module
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from tests.frontend.batches.conftest import (
    ClientFactory,
    batch_file,
    ended,
    lines,
    request_line,
    start,
    until,
)
from tests.frontend.http.app_fixtures import serving
from tests.frontend.http.fake_pool import FakePool, deltas_of


def wrong(number: int) -> dict[str, Any]:
    return request_line(number, temperature=-1)


async def test_every_line_has_its_answer_in_the_order_of_the_input(
    make_sdk: ClientFactory, pool: FakePool
) -> None:
    sdk = await make_sdk()
    data = batch_file(*(request_line(i) if i % 3 else wrong(i) for i in range(40)))
    made = await start(sdk, data, metadata={"a": "b"})
    assert (made.status, made.object, made.metadata) == ("validating", "batch", {"a": "b"})
    batch = await ended(sdk, made.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 40, "completed": 26, "failed": 14}
    assert batch.completed_at is not None
    assert batch.in_progress_at is not None
    answered, failed = await lines(sdk, batch.output_file_id), await lines(sdk, batch.error_file_id)
    assert [each["custom_id"] for each in answered] == [f"ask-{i}" for i in range(40) if i % 3]
    assert [each["custom_id"] for each in failed] == [f"ask-{i}" for i in range(0, 40, 3)]
    assert {each["response"]["body"]["choices"][0]["message"]["content"] for each in answered} == {"Hi there"}
    assert {each["response"]["status_code"] for each in answered} == {200}
    assert {each["response"]["body"]["error"]["param"] for each in failed} == {"temperature"}
    assert {each["error"] for each in answered + failed} == {None}
    assert {seen.request.priority for seen in pool.seen} == {MAX_PRIORITY}
    output = await sdk.files.retrieve(str(batch.output_file_id))
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/completions", {"prompt": "Say"}, "text_completion"),
        ("/v1/embeddings", {"input": "Say"}, "list"),
        ("/v1/responses", {"input": "Say", "store": False}, "response"),
    ],
)
async def test_each_endpoint_answers(
    make_sdk: ClientFactory, pool: FakePool, endpoint: str, body: dict[str, Any], kind: str
) -> None:
    pool.embedding_size = 4 if "embed" in endpoint else 0
    sdk = await make_sdk()
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    batch = await ended(sdk, (await start(sdk, batch_file(line), endpoint=endpoint)).id)
    found = (await lines(sdk, batch.output_file_id))[0]["response"]
    assert (found["status_code"], found["body"]["object"]) == (200, kind)


async def test_what_is_wrong_with_a_file_is_told_by_line(make_sdk: ClientFactory, pool: FakePool) -> None:
    sdk = await make_sdk(max_body_bytes=1024)
    bad = [
        b"{}\n",
        batch_file(request_line(1)),
        b"\n",
        batch_file(request_line(1)),
        batch_file(request_line(2) | {"url": "/v1/completions"}),
        batch_file(request_line(3, stream=True)),
        batch_file(request_line(4, user="x" * 1100)),
        batch_file(request_line(5, background=True))[:-1],
    ]
    batch = await ended(sdk, (await start(sdk, b"".join(bad))).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(each.code, each.line) for each in batch.errors.data] == [
        ("invalid_json_line", 1),
        ("duplicate_custom_id", 4),
        ("mismatched_endpoint", 5),
        ("invalid_request", 6),
        ("line_too_long", 7),
        ("invalid_request", 8),
    ]
    assert pool.seen == []
    assert (batch.output_file_id, batch.error_file_id) == (None, None)


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"\n \n", "empty_file"), (batch_file(*map(request_line, range(4))), "too_many_requests")],
)
async def test_a_batch_has_a_bounded_number_of_requests(
    make_sdk: ClientFactory, data: bytes, code: str
) -> None:
    sdk = await make_sdk(max_batch_requests=3)
    batch = await ended(sdk, (await start(sdk, data)).id)
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [each.code for each in batch.errors.data] == [code]


async def test_a_line_that_meets_no_engine_is_asked_again(
    make_sdk: ClientFactory, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitserve.engine_core.batch_lines.retries.MAX_WAIT_S", 0.01)
    tried: Counter[str] = Counter()

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        prompt = str(request.prompt_token_ids)
        tried[prompt] += 1
        if tried[prompt] < 3:
            raise EngineUnavailableError("none is ready")
        for delta in deltas_of("ok", request):
            yield delta

    pool.script = script
    sdk = await make_sdk()
    batch = await ended(sdk, (await start(sdk, batch_file(*map(request_line, range(5))))).id)
    assert len(await lines(sdk, batch.output_file_id)) == 5
    assert set(tried.values()) == {3}


class Gate:
    """Lets answers go only once it is open; notes whose came."""

    def __init__(self, pool: FakePool, *, num_free: int = 0) -> None:
        self.num_free = num_free
        self.open = asyncio.Event()
        self.blocked = asyncio.Event()
        self.num_asked = self.num_running = self.most_running = 0
        pool.script = self._script

    async def _script(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        self.num_asked += 1
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            if self.num_asked > self.num_free:
                self.blocked.set()
                await self.open.wait()
            for delta in deltas_of("ok", request):
                yield delta
        finally:
            self.num_running -= 1


async def test_a_cancelled_batch_keeps_the_answers_that_came(make_sdk: ClientFactory, pool: FakePool) -> None:
    gate = Gate(pool, num_free=5)
    sdk = await make_sdk(max_batch_concurrency=2)
    made = await start(sdk, batch_file(*map(request_line, range(20))))
    await gate.blocked.wait()
    batch = await sdk.batches.cancel(made.id)
    assert batch.status == "cancelling"
    batch = await ended(sdk, made.id)
    assert batch.status == "cancelled"
    assert batch.cancelling_at is not None
    answered = await lines(sdk, batch.output_file_id)
    assert len(answered) == 5
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed) == (20, 5)
    with pytest.raises(ConflictError) as caught:
        await sdk.batches.cancel(made.id)
    assert caught.value.code == "batch_ended"


async def test_what_has_no_answer_when_the_window_is_over_has_expired(
    make_sdk: ClientFactory, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitserve.frontend.batches.batches._UNITS_S", {"m": 1})
    gate = Gate(pool, num_free=3)
    sdk = await make_sdk(max_batch_concurrency=2)
    made = await start(sdk, batch_file(*map(request_line, range(7))), completion_window="1m")
    batch = await ended(sdk, made.id)
    assert batch.status == "expired"
    assert batch.request_counts is not None
    # Three, unless the second was over before.
    num_answered = batch.request_counts.completed
    assert num_answered <= gate.num_free
    assert num_answered == (len(await lines(sdk, batch.output_file_id)) if num_answered else 0)
    failed = await lines(sdk, batch.error_file_id)
    found = [(each["response"], each["error"]["code"]) for each in failed]
    assert found == [(None, "batch_expired")] * (7 - num_answered)


async def test_lines_give_way_to_requests_of_clients(make_sdk: ClientFactory, pool: FakePool) -> None:
    gate = Gate(pool)
    sdk = await make_sdk(max_batch_concurrency=8)
    # A client's own request is open all the time.
    asked = asyncio.create_task(
        sdk.chat.completions.create(model="org/demo", messages=[{"role": "user", "content": "Hello"}])
    )
    await gate.blocked.wait()
    made = await start(sdk, batch_file(*map(request_line, range(30))))
    await until(sdk, made.id, "in_progress")
    while gate.num_running < 3:
        await asyncio.sleep(0.01)
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert gate.num_running == 1 + 8 // 4
    gate.open.set()
    await asked
    assert (await ended(sdk, made.id)).status == "completed"
    assert gate.most_running <= 8


async def test_a_batch_goes_on_where_another_frontend_left_it(
    make_sdk: ClientFactory, pool: FakePool, tmp_path: Any
) -> None:
    gate = Gate(pool, num_free=8)
    place = str(tmp_path / "files.db")
    async with serving(pool, file_store=place, max_batch_concurrency=2) as (url, _):
        sdk = (await make_sdk(file_store=place)).with_options(base_url=f"{url}/v1")
        made = await start(sdk, batch_file(*map(request_line, range(20))))
        await gate.blocked.wait()
    gate.open.set()
    other = await make_sdk()
    batch = await ended(other, made.id)
    names = [each["custom_id"] for each in await lines(other, batch.output_file_id)]
    assert names == [f"ask-{i}" for i in range(20)]
    # No others than those that were under way when it left were asked twice.
    assert 20 <= gate.num_asked <= 22


async def test_a_frontend_that_lost_its_batch_writes_nothing_more(
    make_sdk: ClientFactory, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(pool, num_free=3)
    # Its lease ends at once, so the other takes the batch while it works.
    monkeypatch.setattr(batches_module, "LEASE_S", 0.0)
    monkeypatch.setattr(runner_module, "LOOK_S", 0.05)
    first, second = await make_sdk(max_batch_concurrency=2), await make_sdk(max_batch_concurrency=2)
    made = await start(first, batch_file(*map(request_line, range(12))))
    await gate.blocked.wait()
    monkeypatch.setattr(batches_module, "LEASE_S", 60.0)
    gate.open.set()
    batch = await ended(second, made.id)
    names = [each["custom_id"] for each in await lines(second, batch.output_file_id)]
    assert names == [f"ask-{i}" for i in range(12)]
    assert batch.request_counts is not None
    assert batch.request_counts.completed == 12


async def test_batches_are_listed_from_the_newest(make_sdk: ClientFactory) -> None:
    sdk = await make_sdk()
    made = [await start(sdk, batch_file(request_line(i))) for i in range(3)]
    names = [each.id for each in made][::-1]
    assert [each.id async for each in sdk.batches.list(limit=2)] == names
    page = await sdk.batches.list(limit=1, after=names[0])
    assert ([each.id for each in page.data], page.has_more) == ([names[1]], True)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/audio"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "15d"}, "completion_window"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
    ],
)
async def test_a_wrong_field_is_named(make_sdk: ClientFactory, changes: dict[str, Any], param: str) -> None:
    sdk = await make_sdk()
    with pytest.raises(BadRequestError) as caught:
        await start(sdk, batch_file(request_line(1)), **changes)
    assert str(caught.value.param).startswith(param)


async def test_a_batch_needs_its_file_and_is_its_tenants_own(make_sdk: ClientFactory) -> None:
    sdk = await make_sdk(tenant_header="x-tenant")
    made = await start(sdk, batch_file(request_line(1)))
    other = sdk.with_options(default_headers={"x-tenant": "other"})
    for asked in (
        other.batches.retrieve(made.id),
        other.batches.cancel(made.id),
        other.files.retrieve(made.input_file_id),
        other.files.content(made.input_file_id),
        other.files.delete(made.input_file_id),
        other.batches.create(
            input_file_id=made.input_file_id, endpoint="/v1/completions", completion_window="24h"
        ),
        sdk.batches.retrieve("batch_none"),
        sdk.batches.retrieve("../x"),
    ):
        with pytest.raises(NotFoundError):
            await asked
    assert (await other.batches.list()).data == []
    assert (await other.files.list()).data == []


async def test_answers_that_do_not_fit_end_the_batch(make_sdk: ClientFactory, pool: FakePool) -> None:
    Gate(pool, num_free=10)
    sdk = await make_sdk(file_store_bytes=2**20)
    # There is room for it, and for few of its answers.
    data = batch_file(*(request_line(i) for i in range(30)))
    data += b" " * (2**20 - 2000 - len(data))
    first = await ended(sdk, (await start(sdk, data)).id)
    assert first.status == "failed"
    assert first.errors is not None
    assert first.errors.data is not None
    assert first.errors.data[0].code == "file_store_full"
    assert first.request_counts is not None
    assert first.request_counts.completed == len(await lines(sdk, first.output_file_id)) == 10


async def test_an_input_that_is_deleted_ends_the_batch(make_sdk: ClientFactory, pool: FakePool) -> None:
    gate = Gate(pool, num_free=2)
    sdk = await make_sdk(max_batch_concurrency=2)
    # Of more than one piece.
    data = batch_file(*(request_line(i, user="y" * 60_000) for i in range(30)))
    made = await start(sdk, data)
    await gate.blocked.wait()
    await sdk.files.delete(made.input_file_id)
    gate.open.set()
    batch = await ended(sdk, made.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert batch.errors.data[0].code == "input_file_missing"
    assert len(await lines(sdk, batch.output_file_id)) > 2

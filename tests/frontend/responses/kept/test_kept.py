"""Kept responses: returned, listed, deleted and continued, by any frontend, for their tenant only."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from splitserve.engine_core.errors import EngineRequestError
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http.api_keys import hash_key
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from tests.frontend.http.fake_pool import FakePool, turns
from tests.frontend.responses.kept.asking import PATH, create, error, get, items
from tests.frontend.responses.kept.conftest import FrontendFactory
from tests.frontend.responses.recorded import events, response_of

KEYS = ("sk-first-key", "sk-second-key")
WEATHER = {"type": "function", "name": "weather"}
CALL = (
    '<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
)


def shown(pool: FakePool) -> Any:
    """The messages that the template got last."""
    assert pool.template is not None
    return pool.template.calls[-1][0]


async def test_a_response_is_kept_and_returned_as_it_was(
    frontend: httpx.AsyncClient, other_frontend: httpx.AsyncClient
) -> None:
    made = await create(frontend, metadata={"a": "b"}, include=["message.output_text.logprobs"])
    assert made["store"] is True
    assert await get(frontend, made["id"]) == await get(other_frontend, made["id"]) == made


async def test_a_stream_is_kept_before_its_last_event(
    frontend: httpx.AsyncClient, other_frontend: httpx.AsyncClient
) -> None:
    response = await frontend.post(PATH, json={"input": "x", "stream": True})
    made = response_of(events(response.text))
    assert made["store"] is True
    assert await get(other_frontend, made["id"]) == made


@pytest.mark.parametrize("stream", [False, True])
async def test_large_responses_are_kept_whole(
    frontend: httpx.AsyncClient, pool: FakePool, stream: bool
) -> None:
    pool.text, pool.max_model_len = "x" * 300, 4096
    body = {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 20, "stream": stream}
    response = await frontend.post(PATH, json=body)
    made = response_of(events(response.text)) if stream else response.json()
    assert len(made["output"][0]["content"][0]["logprobs"]) == 300
    assert await get(frontend, made["id"]) == made


async def test_what_is_not_to_be_kept_is_not(frontend: httpx.AsyncClient) -> None:
    made = await create(frontend, store=False)
    assert made["store"] is False
    status, found = await error(frontend, "GET", f"/{made['id']}")
    assert (status, found["code"]) == (404, "response_not_found")
    assert found["message"] == f"Response with id '{made['id']}' not found."


async def test_without_a_store_nothing_is_kept_and_the_error_says_so(make_frontend: FrontendFactory) -> None:
    client = await make_frontend(response_store="none")
    made = await create(client)
    assert made["store"] is False
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        status, found = await error(client, method, f"/{made['id']}{path}")
        assert status == 404
        assert "--response-store" in found["message"]


async def test_a_deleted_response_is_gone_everywhere(
    frontend: httpx.AsyncClient, other_frontend: httpx.AsyncClient
) -> None:
    made = await create(frontend)
    response = await other_frontend.delete(f"{PATH}/{made['id']}")
    assert response.json() == {"id": made["id"], "object": "response", "deleted": True}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        assert (await error(frontend, method, f"/{made['id']}{path}"))[0] == 404


@pytest.mark.parametrize("name", ["resp_none", "none", "resp_" + "x" * 101, "resp_%2e%2e%00", "%ff"])
async def test_an_id_that_nobody_has_is_not_found(frontend: httpx.AsyncClient, name: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        status, found = await error(frontend, method, f"/{name}{path}")
        assert (status, found["code"]) == (404, "response_not_found")


async def test_a_conversation_goes_on_elsewhere(
    frontend: httpx.AsyncClient, other_frontend: httpx.AsyncClient, pool: FakePool
) -> None:
    first = await create(frontend, instructions="Be brief.", input="one")
    second = await create(other_frontend, input="two", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert shown(pool) == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "Hi there"},
        {"role": "user", "content": "two"},
    ]
    await create(frontend, input="three", previous_response_id=second["id"], instructions="Be long.")
    assert [message["content"] for message in shown(pool)] == [
        "Be long.",
        "one",
        "Hi there",
        "two",
        "Hi there",
        "three",
    ]


async def test_a_conversation_goes_on_when_its_beginning_is_deleted(
    frontend: httpx.AsyncClient, pool: FakePool
) -> None:
    first = await create(frontend, input="one")
    second = await create(frontend, input="two", previous_response_id=first["id"])
    await frontend.delete(f"{PATH}/{first['id']}")
    await create(frontend, input="three", previous_response_id=second["id"])
    assert [message["content"] for message in shown(pool)] == ["one", "Hi there", "two", "Hi there", "three"]


async def test_a_response_that_is_not_kept_may_continue_one_that_is(
    frontend: httpx.AsyncClient, pool: FakePool
) -> None:
    first = await create(frontend, input="one")
    second = await create(frontend, input="two", previous_response_id=first["id"], store=False, stream=False)
    assert len(shown(pool)) == 3
    status, found = await error(
        frontend, "POST", "", json={"input": "x", "previous_response_id": second["id"]}
    )
    assert (status, found["code"]) == (400, "previous_response_not_found")
    assert found["param"] == "previous_response_id"
    assert found["message"] == f"Previous response with id '{second['id']}' not found."


async def test_calls_and_reasoning_are_continued_as_if_they_were_sent_back(
    frontend: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.formats, pool.text, pool.max_model_len = (
        with_overrides(AnswerFormats(), "think", "hermes"),
        CALL,
        4096,
    )
    first = await create(frontend, input="one", tools=[WEATHER])
    call = first["output"][-1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "warm"}
    await create(frontend, input=[{"role": "user", "content": "one"}, *first["output"], result])
    sent_back = shown(pool)
    await create(frontend, input=[result], previous_response_id=first["id"])
    assert shown(pool) == sent_back
    assert sent_back[1]["reasoning"] == "Hm."
    assert sent_back[1]["tool_calls"][0]["id"] == call["call_id"]


async def test_a_conversation_has_a_greatest_length(frontend: httpx.AsyncClient, pool: FakePool) -> None:
    pool.max_model_len = 2**20
    many = [{"role": "user", "content": ""}] * 4095
    first = await create(frontend, input=many)
    status, found = await error(
        frontend, "POST", "", json={"input": "x", "previous_response_id": first["id"]}
    )
    assert (status, found["param"]) == (400, "previous_response_id")
    assert "4096 items and the 1 of input" in found["message"]


async def test_what_has_failed_is_not_continued(frontend: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "Hi", [1])
        yield OutputDelta(0, finish_reason="abort")

    pool.script = script
    first = await create(frontend)
    assert first["status"] == "failed"
    status, found = await error(
        frontend, "POST", "", json={"input": "x", "previous_response_id": first["id"]}
    )
    assert (status, found["param"]) == (400, "previous_response_id")
    assert "failed" in found["message"]


async def test_what_an_error_ends_is_not_kept(frontend: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "Hi", [1])
        await turns()
        raise EngineRequestError("no luck")

    pool.script = script
    response = await frontend.post(PATH, json={"input": "x", "stream": True})
    last = events(response.text)[-1]
    assert last["type"] == "response.failed"
    assert (await error(frontend, "GET", f"/{last['response']['id']}"))[0] == 404


async def test_tenants_do_not_see_each_other(make_frontend: FrontendFactory) -> None:
    client = await make_frontend(api_key_hashes=tuple(hash_key(key) for key in KEYS))
    client.headers["authorization"] = f"Bearer {KEYS[0]}"
    made = await create(client)
    client.headers["authorization"] = f"Bearer {KEYS[1]}"
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        assert (await error(client, method, f"/{made['id']}{path}"))[0] == 404
    status, found = await error(client, "POST", "", json={"input": "x", "previous_response_id": made["id"]})
    assert (status, found["code"]) == (400, "previous_response_not_found")
    del client.headers["authorization"]
    assert (await error(client, "GET", f"/{made['id']}"))[0] == 401
    client.headers["authorization"] = f"Bearer {KEYS[0]}"
    assert await get(client, made["id"]) == made


async def test_the_same_id_names_the_latest_response(frontend: httpx.AsyncClient) -> None:
    await create(frontend, request_id="abc", input="one")
    latest = await create(frontend, request_id="abc", input="two")
    assert await get(frontend, "resp_abc") == latest


@pytest.mark.parametrize("background", [False, True])
async def test_the_events_of_other_responses_are_not_kept(
    frontend: httpx.AsyncClient, background: bool
) -> None:
    made = await create(frontend, background=background)
    status, found = await error(frontend, "GET", f"/{made['id']}", params={"stream": "true"})
    assert (status, found["param"]) == (400, "stream")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"stream": "yes"}, "stream"),
        ({"starting_after": "1"}, "starting_after"),
        ({"stream": "false", "starting_after": "1"}, "starting_after"),
        ({"stream": "true", "starting_after": "-1"}, "starting_after"),
        ({"stream": "true", "starting_after": str(2**31)}, "starting_after"),
        ({"stream": "true", "starting_after": "x"}, "starting_after"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(
    frontend: httpx.AsyncClient, query: dict[str, str], param: str
) -> None:
    made = await create(frontend)
    status, found = await error(frontend, "GET", f"/{made['id']}", params=query)
    assert (status, found["param"]) == (400, param)


async def test_what_is_generated_for_a_client_cannot_be_cancelled(frontend: httpx.AsyncClient) -> None:
    made = await create(frontend)
    status, found = await error(frontend, "POST", f"/{made['id']}/cancel")
    assert (status, found["message"]) == (400, "Cannot cancel a synchronous response.")


async def test_the_input_is_listed(frontend: httpx.AsyncClient) -> None:
    given = [
        {"role": "system", "content": "s"},
        {"id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
        {"id": "msg_1", "role": "user", "content": "again"},
    ]
    made = await create(frontend, input=given)
    found = await items(frontend, made["id"], order="asc")
    assert (found["object"], found["has_more"]) == ("list", False)
    assert [found["first_id"], found["last_id"]] == [found["data"][0]["id"], found["data"][-1]["id"]]
    ids = [item.pop("id") for item in found["data"]]
    assert len({*ids}) == 8
    assert ids[1] == "msg_1"
    message = {"type": "message", "status": "completed"}
    assert found["data"] == [
        message | {"role": "system", "content": [{"type": "input_text", "text": "s"}]},
        message | {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        message | {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        message | {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {
            "type": "reasoning",
            "status": "completed",
            "content": [],
            "summary": [{"type": "summary_text", "text": "t"}],
            "encrypted_content": None,
        },
        {"type": "function_call", "status": "completed", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "status": "completed", "call_id": "c", "output": "r"},
        message | {"role": "user", "content": [{"type": "input_text", "text": "again"}]},
    ]


async def test_the_input_of_a_continuation_has_what_came_before(frontend: httpx.AsyncClient) -> None:
    first = await create(frontend, input="one")
    second = await create(frontend, input="two", previous_response_id=first["id"])
    listed = (await items(frontend, second["id"], order="asc"))["data"]
    assert [item["content"][0]["text"] for item in listed] == ["one", "Hi there", "two"]
    assert listed[1]["id"] == first["output"][0]["id"]


async def test_the_input_is_listed_in_pages(frontend: httpx.AsyncClient) -> None:
    given = [{"role": "user", "id": f"msg_{i}", "content": "x"} for i in range(25)]
    made = await create(frontend, input=given)

    async def ids(**query: Any) -> tuple[list[int], bool]:
        page = await items(frontend, made["id"], **query)
        return [int(item["id"].removeprefix("msg_")) for item in page["data"]], page["has_more"]

    assert await ids() == ([*range(24, 4, -1)], True)
    assert await ids(after="msg_5") == ([4, 3, 2, 1, 0], False)
    assert await ids(order="asc", limit=100) == ([*range(25)], False)
    assert await ids(order="asc", limit=2, after="msg_3") == ([4, 5], True)
    assert await ids(order="asc", limit=2, after="msg_22") == ([23, 24], False)
    assert await ids(order="asc", before="msg_2") == ([0, 1], False)
    assert await ids(order="asc", after="msg_1", before="msg_4", limit=1) == ([2], True)
    assert await ids(order="asc", after="msg_24") == ([], False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"),
        ("limit", "101"),
        ("limit", "x"),
        ("limit", "1.0"),
        ("limit", "٣"),
        ("limit", "9" * 5000),
        ("order", "up"),
        ("after", "msg_none"),
        ("before", "msg_none"),
    ],
)
async def test_a_wrong_page_is_refused_by_name(frontend: httpx.AsyncClient, name: str, value: str) -> None:
    made = await create(frontend)
    status, found = await error(frontend, "GET", f"/{made['id']}/input_items", params={name: value})
    assert (status, found["param"], found["code"]) == (400, name, "invalid_value")
    assert len(found["message"]) < 300

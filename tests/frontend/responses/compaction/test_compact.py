"""POST /v1/responses/compact: a summary that stands for a conversation, at any frontend."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.responses.compaction.summary_seal import SummarySeal
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from tests.frontend.http.app_fixtures import ClientFactory, ServerFactory
from tests.frontend.http.fake_pool import FakePool, deltas_of

PATH = "/v1/responses"
USER = {"role": "user", "content": "We launch on Tuesday."}
ANSWER = {"role": "assistant", "content": "Understood."}
SYSTEM = {"role": "developer", "content": "Be brief."}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "warm"}
SUMMARY = "Summary of our conversation up to here:\n\nLaunch: Tuesday."
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def summarizes(pool: FakePool) -> None:
    pool.max_model_len = 4096
    pool.text = " Launch: Tuesday.\n"


async def compact(client: httpx.AsyncClient, **body: Any) -> Json:
    response = await client.post(f"{PATH}/compact", json={"model": "org/demo"} | body)
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


async def refusal(client: httpx.AsyncClient, path: str = f"{PATH}/compact", **body: Any) -> tuple[int, Json]:
    response = await client.post(path, json={"model": "org/demo"} | body)
    return response.status_code, response.json()["error"]


def rendered(pool: FakePool) -> list[tuple[str, str]]:
    """Role and content of the messages that the template got last."""
    assert pool.template is not None
    return [(message["role"], message["content"]) for message in pool.template.calls[-1][0]]


def texts(found: Json) -> list[tuple[str, str]]:
    """Role and text of the messages beside the summary."""
    return [(item["role"], item["content"][0]["text"]) for item in found["output"][:-1]]


async def test_the_model_is_asked_for_a_summary_which_is_sealed(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    found = await compact(client, input=[USER, ANSWER], instructions="Be kind.")
    (system, user, answer, (role, asked)) = rendered(pool)
    assert (system, user) == (("system", "Be kind."), ("user", USER["content"]))
    assert (answer, role) == (("assistant", ANSWER["content"]), "user")
    assert asked.startswith("Summarize our conversation")
    sampling = pool.seen[-1].request.sampling
    assert (sampling.temperature, sampling.max_tokens) == (0.0, 1024)
    assert pool.template is not None
    variables = pool.template.calls[-1][1].variables
    assert variables is not None
    assert variables["enable_thinking"] is False
    assert (found["object"], found["id"][:5]) == ("response.compaction", "resp_")
    message, summary = found["output"]
    assert message | {"id": ""} == {
        "type": "message",
        "id": "",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": USER["content"]}],
    }
    assert (summary["type"], summary["id"][:4]) == ("compaction", "cmp_")
    assert SummarySeal().open(summary["encrypted_content"], "x") == "Launch: Tuesday."
    num_tokens = len(pool.text)
    usage = found["usage"]
    assert usage["output_tokens"] == num_tokens
    assert usage["input_tokens"] == len(pool.seen[-1].request.prompt_token_ids)
    assert usage["total_tokens"] == usage["input_tokens"] + num_tokens


async def test_a_conversation_goes_on_from_it_at_any_frontend(
    make_client: ClientFactory, pool: FakePool, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    one, other = (make_client(compaction_key_file=str(tmp_path / "key"), strict=True) for _ in range(2))
    output = (await compact(one, input=[USER, ANSWER, USER | {"content": "At noon."}]))["output"]
    more = USER | {"content": "When?"}
    response = await other.post(PATH, json={"input": [*output, more]})
    assert response.status_code == 200, response.text
    assert rendered(pool) == [
        ("user", "We launch on Tuesday.\n\nAt noon."),
        ("assistant", SUMMARY),
        ("user", "When?"),
    ]
    # And what went on is summarized with the summary before.
    again = await compact(other, input=[*output, more])
    roles = [role for role, _ in rendered(pool)]
    assert roles == ["user", "assistant", "user"]
    assert rendered(pool)[-1][1].startswith("When?\n\nSummarize")
    assert texts(again) == [("user", "We launch on Tuesday."), ("user", "At noon."), ("user", "When?")]
    without_key = make_client()
    status, error = await refusal(without_key, PATH, input=[*output, more])
    assert (status, error["param"]) == (400, "input[2].encrypted_content")


async def test_what_came_before_a_kept_response_is_part_of_it(
    make_server: ServerFactory, pool: FakePool, tmp_path: Path
) -> None:
    url = await make_server(response_store=str(tmp_path / "responses.db"))
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        kept = (await client.post(PATH, json={"input": "hello"})).json()
        output = (await compact(client, previous_response_id=kept["id"]))["output"]
        assert [each for each, _ in rendered(pool)] == ["user", "assistant", "user"]
        # A response that begins with the summary is kept with it.
        second = (await client.post(PATH, json={"input": [*output, USER]})).json()
        items = (await client.get(f"{PATH}/{second['id']}/input_items")).json()["data"]
        assert items[1] == output[-1]
        assert (
            await client.post(PATH, json={"input": "so", "previous_response_id": second["id"]})
        ).is_success
        assert rendered(pool)[1] == ("assistant", SUMMARY)


async def test_system_messages_stay_and_the_latest_of_the_user_as_long_as_they_are_short(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    long = USER | {"content": "x" * 3000}
    items = [SYSTEM, USER, long, ANSWER, CALL, RESULT, USER | {"content": "y" * 2000}]
    pool.max_model_len = 2**20
    assert [len(text) for _, text in texts(await compact(client, input=items))] == [9, 21, 3000, 2000]
    pool.max_model_len = 4500
    found = await compact(client, input=items)
    assert texts(found) == [("developer", "Be brief."), ("user", "y" * 2000)]


async def test_of_a_conversation_that_is_too_long_the_latest_turns_are_summarized(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.max_model_len = 2000
    await compact(client, input=[SYSTEM, USER | {"content": "x" * 1500}, ANSWER, USER, ANSWER])
    assert [role for role, _ in rendered(pool)] == ["system", "user", "assistant", "user"]
    status, error = await refusal(client, input=[USER | {"content": "x" * 1500}])
    assert (status, error["code"]) == (400, "context_length_exceeded")


async def test_reasoning_is_no_part_of_the_summary(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "think", "none")
    pool.text = "<think>Hm.</think>Short."
    found = await compact(client, input="hello")
    assert SummarySeal().open(found["output"][-1]["encrypted_content"], "x") == "Short."
    pool.text = "<think>Hm.</think> \n"
    status, error = await refusal(client, input="hello")
    assert (status, error["code"]) == (500, "no_summary")
    assert "no summary" in error["message"]


async def test_an_engine_that_gives_up_leaves_no_summary(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def aborted(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for delta in deltas_of("Half", request):
            delta.finish_reason = delta.finish_reason and "abort"
            yield delta

    pool.script = aborted
    status, error = await refusal(client, input="hello")
    assert (status, error["code"]) == (500, "request_failed")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": "x", "model": None}, 400, "model"),
        ({"input": "x", "model": "another"}, 404, "model"),
        ({"input": "x", "stream": True}, 400, "stream"),
        ({"input": "x", "conversation": "conv_1"}, 400, "conversation"),
        ({"input": [{"type": "compaction"}]}, 400, "input[0].encrypted_content"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, 400, "input[0].encrypted_content"),
        ({"previous_response_id": "resp_x"}, 400, "previous_response_id"),
    ],
    ids=str,
)
async def test_what_it_cannot_do_is_refused(
    client: httpx.AsyncClient, body: Json, status: int, param: str
) -> None:
    found, error = await refusal(client, **body)
    assert (found, error["param"]) == (status, param)


async def test_a_model_has_to_be_named(client: httpx.AsyncClient) -> None:
    response = await client.post(f"{PATH}/compact", json={"input": "x"})
    assert response.status_code == 400
    assert "model" in response.json()["error"]["message"]

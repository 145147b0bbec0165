"""Timeouts, tenants named by a header, and /debug/requests, over a fake pool."""

from __future__ import annotations

import json

import httpx
import pytest

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.ipc.messages import (
    Finished,
    FinishReason,
    Rejected,
    RequestInfo,
    RequestStage,
    WaitReason,
)
from splitserve.frontend.engines.connection.errors import finished_error, rejected_error
from splitserve.frontend.http.api_keys import hash_key
from splitserve.frontend.http.errors import error_response
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool

KEY = "sk-first-key"
WITH_KEY = {"authorization": f"Bearer {KEY}"}
INFO = RequestInfo(
    request_id="cmpl-x",
    stage=RequestStage.WAITING,
    waits_for=WaitReason.BLOCKS,
    position=3,
    num_prompt_tokens=40,
    priority=-1,
    age_s=2.5,
    queue_time_s=2.5,
)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_timeouts_reach_the_engine(client: httpx.AsyncClient, pool: FakePool, path: str) -> None:
    prompt = (
        {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
    )
    await client.post(path, json=prompt | {"timeout": 3, "queue_timeout": 0.5})
    await client.post(path, json=prompt | {"timeout": None})
    times = [(seen.request.timeout_s, seen.request.queue_timeout_s) for seen in pool.seen]
    assert times == [(3.0, 0.5), (0.0, 0.0)]


@pytest.mark.parametrize("name", ["timeout", "queue_timeout"])
@pytest.mark.parametrize("value", [0, -1, 604801, 1e300])
async def test_a_timeout_out_of_range_is_refused(
    client: httpx.AsyncClient, pool: FakePool, name: str, value: float
) -> None:
    response = await client.post("/v1/completions", json={"prompt": "x", name: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, name)
    assert "above 0 and up to 604800" in error["message"]
    assert pool.seen == []


@pytest.mark.parametrize(
    ("code", "status", "words"), [("timeout", 504, "did not finish"), ("queue_timeout", 503, "queue timeout")]
)
def test_a_timeouts_error_tells_which_it_was(code: str, status: int, words: str) -> None:
    error = finished_error(
        Finished(1, FinishReason.ERROR, error_code=code, error_message="secret", error_status=status)
    )
    assert error is not None
    assert not isinstance(error, EngineUnavailableError), "no engine was lost, so nothing is to be resumed"
    response = error_response(error)
    body = json.loads(bytes(response.body))["error"]
    assert (response.status_code, body["type"], body["code"]) == (status, "server_error", code)
    assert words in body["message"]
    assert ("retry-after" in response.headers) == (status == 503)


def test_the_engines_estimate_becomes_the_header() -> None:
    response = error_response(
        rejected_error(Rejected(1, 429, "overloaded", "about 42 s", retry_after_s=42.0))
    )
    assert (response.status_code, response.headers["retry-after"]) == (429, "42")
    assert json.loads(bytes(response.body))["error"]["message"] == "about 42 s"


async def test_a_header_names_the_tenant_where_the_operator_allows_it(
    make_client: ClientFactory, pool: FakePool
) -> None:
    body = {"prompt": "x"}
    named = {"x-tenant": "team:a"}
    await make_client().post("/v1/completions", json=body, headers=named)
    trusting = make_client(tenant_header="X-Tenant")
    await trusting.post("/v1/completions", json=body, headers=named)
    keyed = make_client(tenant_header="X-Tenant", api_key_hashes=(hash_key(KEY),))
    await keyed.post("/v1/completions", json=body, headers=named | WITH_KEY)
    await keyed.post("/v1/completions", json=body, headers=WITH_KEY)
    assert [seen.request.tenant for seen in pool.seen] == ["", "team:a", "team:a", hash_key(KEY)[:16]]
    assert (await keyed.post("/v1/completions", json=body, headers=named)).status_code == 401


@pytest.mark.parametrize("values", [[""], ["a b"], ["x" * 65], ["ä"], ["a", "b"]])
async def test_a_tenant_that_is_no_name_is_refused(
    make_client: ClientFactory, pool: FakePool, values: list[str]
) -> None:
    headers = [(b"x-tenant", value.encode("latin-1")) for value in values]
    response = await make_client(tenant_header="X-Tenant").post(
        "/v1/completions", json={"prompt": "x"}, headers=headers
    )
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_tenant")
    assert pool.seen == []


async def test_a_request_tells_what_it_waits_for(client: httpx.AsyncClient, pool: FakePool) -> None:
    running = RequestInfo("cmpl-y", RequestStage.RUNNING, num_prompt_tokens=4, num_output_tokens=2)
    pool.open_requests = [INFO, running]
    body = (await client.get("/debug/requests")).json()
    assert body["unanswered"] == []
    waits, runs = body["requests"]
    assert waits == {
        "engine": "engine-0",
        "request_id": "cmpl-x",
        "state": "waiting",
        "waits_for": "blocks",
        "position": 3,
        "priority": -1,
        "prompt_tokens": 40,
        "output_tokens": 0,
        "computed_tokens": 0,
        "draft_tokens": 0,
        "accepted_draft_tokens": 0,
        "preemptions": 0,
        "age_s": 2.5,
        "queue_time_s": 2.5,
    }
    assert (runs["state"], runs["waits_for"], runs["position"]) == ("running", None, None)
    assert pool.asked == [([], "")]


async def test_one_request_is_found_by_any_of_its_ids(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.open_requests = [INFO]
    assert (await client.get("/debug/requests/x")).json()["requests"][0]["request_id"] == "cmpl-x"
    assert pool.asked == [(["x", "cmpl-x", "chatcmpl-x", "msg_x", "resp_x"], "")]


@pytest.mark.parametrize("request_id", ["gone", "x" * 129])
async def test_a_request_that_is_not_open_is_404(client: httpx.AsyncClient, request_id: str) -> None:
    response = await client.get(f"/debug/requests/{request_id}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_request")


async def test_a_key_shows_its_own_tenants_requests(make_client: ClientFactory, pool: FakePool) -> None:
    client = make_client(api_key_hashes=(hash_key(KEY),))
    assert (await client.get("/debug/requests")).status_code == 401
    assert (await client.get("/debug/requests", headers=WITH_KEY)).status_code == 200
    assert pool.asked == [([], hash_key(KEY)[:16])]


async def test_engines_that_do_not_answer_are_named(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.answers = False
    assert (await client.get("/debug/requests")).json() == {"requests": [], "unanswered": ["engine-0"]}
    pool.state = "loading"
    assert (await client.get("/debug/requests")).status_code == 503

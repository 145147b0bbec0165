"""Models, tokens, health, version and documentation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.status import EngineStatus
from splitserve.frontend.http.api_keys import hash_key
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import BOS, FakePool


async def test_models_list_every_name(client: httpx.AsyncClient) -> None:
    body = (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [(card["id"], card["root"]) for card in body["data"]] == [
        ("org/demo", "org/demo"),
        ("alias", "org/demo"),
    ]
    assert body["data"][0]["max_model_len"] == 256
    assert body["data"][0]["object"] == "model"
    assert body["data"][0]["task"] == "generate"


async def test_a_model_id_may_hold_slashes(client: httpx.AsyncClient) -> None:
    for path in ("/v1/models/org/demo", "/v1/models/org%2Fdemo"):
        assert (await client.get(path)).json()["id"] == "org/demo"
    response = await client.get("/v1/models/org/none")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_an_empty_model_name_is_nobodys(client: httpx.AsyncClient) -> None:
    message = {"role": "user", "content": "a"}
    asked = [
        await client.get("/v1/models/"),
        await client.post("/v1/completions", json={"model": "", "prompt": "a"}),
        await client.post("/v1/chat/completions", json={"model": "", "messages": [message]}),
        await client.post("/tokenize", json={"model": "", "prompt": "a"}),
    ]
    found = [(response.status_code, response.json()["error"]["code"]) for response in asked]
    assert found == [(404, "model_not_found")] * 4


async def test_models_are_empty_while_nothing_is_ready(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.state = "loading"
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": []}
    assert (await client.get("/v1/models/org/demo")).status_code == 503


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models", None),
        ("/v1/models/org/demo", None),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [97]}),
    ],
)
async def test_what_needs_a_model_waits_for_a_pool_that_settles(
    client: httpx.AsyncClient, pool: FakePool, path: str, body: dict[str, object] | None
) -> None:
    pool.state = "settling"
    assert (await client.get("/ready")).status_code == 503, "a probe does not wait"
    response = await (client.get(path) if body is None else client.post(path, json=body))
    assert response.status_code == 200
    assert response.json().get("data") != []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "ab"}, [BOS, 97, 98]),
        ({"prompt": "ab", "add_special_tokens": False}, [97, 98]),
        ({"prompt": "", "add_special_tokens": False}, []),
        ({"messages": [{"role": "user", "content": "a"}]}, list(b"user: a\nassistant: ")),
        (
            {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False},
            list(b"user: a\n"),
        ),
    ],
)
async def test_tokenize_counts_texts_and_conversations(
    client: httpx.AsyncClient, body: dict, expected: list[int]
) -> None:
    found = (await client.post("/tokenize", json=body)).json()
    assert found == {"count": len(expected), "max_model_len": 256, "tokens": expected, "token_strs": None}


async def test_tokenize_counts_texts_that_do_not_fit_the_model(client: httpx.AsyncClient) -> None:
    assert (await client.post("/tokenize", json={"prompt": "x" * 1000})).json()["count"] == 1001


async def test_tokenize_spells_tokens_when_asked(client: httpx.AsyncClient) -> None:
    found = (await client.post("/tokenize", json={"prompt": "a", "return_token_strs": True})).json()
    assert found["token_strs"] == ["<0x100>", "<0x61>"]


async def test_detokenize_gives_the_text_back(client: httpx.AsyncClient) -> None:
    tokens = (await client.post("/tokenize", json={"prompt": "héllo", "add_special_tokens": False})).json()[
        "tokens"
    ]
    assert (await client.post("/detokenize", json={"tokens": tokens})).json() == {"prompt": "héllo"}
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_live_answers_whatever_the_engines_do(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.state = "lost"
    assert (await client.get("/live")).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize(
    ("state", "answers", "status", "verdict"),
    [
        ("ready", True, 200, "ok"),
        ("ready", False, 503, "unavailable"),
        ("loading", True, 503, "loading"),
        ("draining", True, 503, "draining"),
        ("recovering", True, 503, "recovering"),
        ("connecting", True, 503, "unavailable"),
        ("lost", True, 503, "unavailable"),
        ("refused", True, 503, "unavailable"),
    ],
)
async def test_health_is_a_round_trip_to_a_ready_engine(
    client: httpx.AsyncClient, pool: FakePool, path: str, state: str, answers: bool, status: int, verdict: str
) -> None:
    pool.state, pool.answers = state, answers
    response = await client.get(path)
    assert (response.status_code, response.json()["status"]) == (status, verdict)
    assert response.json()["engines"][0]["state"] == state
    assert "secret" not in response.text


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_an_engine_that_answers_but_is_stalled_is_not_ready(
    client: httpx.AsyncClient, pool: FakePool, path: str
) -> None:
    assert (await client.get(path)).json()["engines"][0]["stalled"] is None
    pool.stalled = "a worker is stopped"
    response = await client.get(path)
    assert (response.status_code, response.json()["status"]) == (503, "unavailable")
    assert response.json()["engines"][0]["stalled"] == "a worker is stopped"


async def test_health_tells_how_far_loading_is_and_how_old_the_last_step(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    assert (await client.get("/health")).json()["engines"][0]["last_step_age_s"] == 0.0
    pool.state = "loading"
    engine = (await client.get("/health")).json()["engines"][0]
    assert (engine["loading_stage"], engine["loading_fraction"]) == ("weights", 0.25)


async def test_probes_that_overlap_share_one_round_trip(
    client: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_pings = 0
    asked, release = asyncio.Event(), asyncio.Event()

    async def ping(timeout_s: float) -> list[EngineStatus]:
        nonlocal num_pings
        num_pings += 1
        asked.set()
        await release.wait()
        return pool.status()

    monkeypatch.setattr(pool, "ping", ping)
    probes = [asyncio.create_task(client.get("/health")) for _ in range(20)]
    await asked.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    release.set()
    assert {response.status_code for response in await asyncio.gather(*probes)} == {200}
    assert num_pings == 1


async def test_version_and_docs(make_client: ClientFactory) -> None:
    client = make_client()
    assert list((await client.get("/version")).json()) == ["version"]
    assert "/v1/chat/completions" in (await client.get("/docs")).text
    hidden = make_client(disable_docs=True)
    assert [(await hidden.get(path)).status_code for path in ("/docs", "/openapi.json")] == [404, 404]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_ping_is_health_under_another_name(
    client: httpx.AsyncClient, pool: FakePool, method: str
) -> None:
    ready = await client.request(method, "/ping")
    assert (ready.status_code, ready.json()["status"]) == (200, "ok")
    pool.state = "lost"
    assert (await client.request(method, "/ping")).status_code == 503


async def test_load_counts_the_requests_in_progress(client: httpx.AsyncClient, pool: FakePool) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        started.set()
        await go_on.wait()
        yield OutputDelta(0, "a", [97], finish_reason="stop")

    pool.script = script
    assert (await client.get("/load")).json() == {"server_load": 0}
    asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}))
    await started.wait()
    assert (await client.get("/load")).json() == {"server_load": 1}
    go_on.set()
    await asking
    assert (await client.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize("path", ["/ping", "/load", "/tokenizer_info"])
async def test_these_routes_need_a_key_like_all_others(make_client: ClientFactory, path: str) -> None:
    keyed = {"api_key_hashes": (hash_key("sk-test-key"),), "enable_tokenizer_info_endpoint": True}
    assert (await make_client(**keyed).get(path)).status_code == 401
    headers = {"authorization": "Bearer sk-test-key"}
    assert (await make_client(**keyed).get(path, headers=headers)).status_code == 200


@pytest.mark.parametrize("path", ["/ping", "/load"])
async def test_an_operator_may_open_ping_and_load(make_client: ClientFactory, path: str) -> None:
    client = make_client(api_key_hashes=(hash_key("sk-test-key"),), public_paths=(path,))
    assert (await client.get(path)).status_code == 200


async def test_the_tokenizers_configuration_is_shown_without_paths(make_client: ClientFactory) -> None:
    client = make_client(enable_tokenizer_info_endpoint=True)
    assert (await client.get("/tokenizer_info")).json() == {
        "tokenizer_class": "ByteTokenizer",
        "bos_token": "<|256|>",
        "chat_template": "{{ messages }}",
    }
    assert "/tokenizer_info" in (await client.get("/openapi.json")).json()["paths"]
    assert (await client.get("/tokenizer_info?model=none")).status_code == 404


async def test_several_templates_are_shown_by_name(make_client: ClientFactory, pool: FakePool) -> None:
    pool.template.sources = {"default": "a", "tool_use": "b"}
    info = (await make_client(enable_tokenizer_info_endpoint=True).get("/tokenizer_info")).json()
    assert info["chat_template"] == [
        {"name": "default", "template": "a"},
        {"name": "tool_use", "template": "b"},
    ]


async def test_without_its_flag_there_is_no_tokenizer_info(client: httpx.AsyncClient) -> None:
    response = await client.get("/tokenizer_info")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_route")
    assert "/tokenizer_info" not in (await client.get("/openapi.json")).json()["paths"]

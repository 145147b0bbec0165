"""API keys: every route, every way of presenting a wrong one, and the tenant a right one gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from splitserve.engine_core.errors import ConfigError
from splitserve.frontend.app import create_app
from splitserve.frontend.http.api_keys import MIN_SAFE_KEY_CHARS, count_short_keys, hash_key, hash_keys
from tests.frontend.http.app_fixtures import ClientFactory, make_config
from tests.frontend.http.fake_pool import FakePool

KEYS = ("sk-first-key", "sk-second-key")
HASHES = tuple(hash_key(key) for key in KEYS)
GOOD = {"authorization": f"Bearer {KEYS[1]}"}


def all_paths() -> list[str]:
    """Paths of every route the application has, with parameters filled in."""
    app = create_app(make_config(), FakePool())
    return [
        route.path.replace("{model_id:path}", "org/demo").replace("{request_id}", "cmpl-1")
        for route in app.routes
        if isinstance(route, Route)
    ]


def test_the_walk_over_routes_sees_all_families() -> None:
    assert {
        "/v1/completions",
        "/v1/models/org/demo",
        "/tokenize",
        "/metrics",
        "/docs",
        "/live",
        "/debug/requests/cmpl-1",
    } <= set(all_paths())


@pytest.mark.parametrize(
    "path", [*all_paths(), "/no/such/route", "/", "/live/", "/live/x", "//live", "/LIVE"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE", "TRACE"])
async def test_every_route_but_live_needs_a_key(make_client: ClientFactory, path: str, method: str) -> None:
    # The page is for everybody, too: tests/frontend/page.
    client = make_client(api_key_hashes=HASHES, disable_page=True)
    response = await client.request(method, path, json={})
    if path == "/live":
        assert response.status_code in (200, 405)
        return
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        assert response.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {KEYS[0]}x"},
        {"authorization": f"Bearer {KEYS[0][:-1]}"},
        {"authorization": f"Basic {KEYS[0]}"},
        {"authorization": KEYS[0]},
        {"authorization": f"Bearer {HASHES[0]}"},
        {"x-api-key": ""},
        {"x-api-key": "wrong"},
        {"x-api-key": f"Bearer {KEYS[0]}"},
        {"x-api-key": KEYS[0], "authorization": "Bearer wrong"},
        {"x-api-key": KEYS[0], "authorization": f"Basic {KEYS[0]}"},
        [("x-api-key", KEYS[0]), ("x-api-key", "wrong")],
        {"authorization": b"Bearer \xff\xfe"},
        [("authorization", f"Bearer {KEYS[0]}"), ("authorization", "Bearer wrong")],
        {"host": "frontend/live?x="},
        {"host": "frontend#/live"},
    ],
    ids=str,
)
async def test_anything_but_one_right_key_is_refused(make_client: ClientFactory, headers: Any) -> None:
    response = await make_client(api_key_hashes=HASHES).get("/v1/models", headers=headers)
    assert response.status_code == 401
    assert not any(key in response.text for key in KEYS)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
@pytest.mark.parametrize("key", KEYS)
async def test_each_key_opens_the_door(make_client: ClientFactory, scheme: str, key: str) -> None:
    client = make_client(api_key_hashes=HASHES)
    assert (await client.get("/v1/models", headers={"authorization": f"{scheme} {key}"})).status_code == 200


async def test_a_key_may_come_as_anthropics_clients_send_it(make_client: ClientFactory) -> None:
    client = make_client(api_key_hashes=HASHES)
    assert (await client.get("/v1/models", headers={"x-api-key": KEYS[1]})).status_code == 200
    both = {"x-api-key": "wrong", **GOOD}
    assert (await client.get("/v1/models", headers=both)).status_code == 200


async def test_the_tenant_is_a_prefix_of_the_keys_hash(make_client: ClientFactory, pool: FakePool) -> None:
    await make_client(api_key_hashes=HASHES).post("/v1/completions", json={"prompt": "x"}, headers=GOOD)
    await make_client().post("/v1/completions", json={"prompt": "x"})
    assert [seen.request.tenant for seen in pool.seen] == [HASHES[1][:16], ""]


async def test_an_operator_may_open_probes_but_never_the_api(make_client: ClientFactory) -> None:
    client = make_client(api_key_hashes=HASHES, public_paths=("/health", "/metrics"))
    statuses = [
        (await client.get(path)).status_code for path in ("/health", "/metrics", "/ready", "/v1/models")
    ]
    assert statuses == [200, 200, 401, 401]
    with pytest.raises(ConfigError, match="--public-path"):
        make_config(public_paths=("/v1/models",))


def test_key_files_hold_one_key_per_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n{KEYS[0]}\n\n  {KEYS[1]}  \n")
    assert hash_keys([KEYS[0]], str(path)) == HASHES


@pytest.mark.parametrize(
    "content", ["", "# none\n", "x" * 513 + "\n", "with space in it\n", "ünïcödé-key\n", "\x00" * 20]
)
def test_unusable_key_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        hash_keys([], str(path))
    assert not content.strip() or content.strip() not in str(caught.value)


def test_short_keys_are_taken_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("b\n" + "x" * MIN_SAFE_KEY_CHARS + "\n")
    assert hash_keys(["a"], str(path))[:2] == (hash_key("a"), hash_key("b"))
    assert count_short_keys(["a", "b"], str(path)) == 2
    assert count_short_keys(["y" * MIN_SAFE_KEY_CHARS], "") == 0


def test_a_missing_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        hash_keys([], str(tmp_path / "none"))


async def test_cors_answers_preflights_without_a_key_and_marks_refusals(make_client: ClientFactory) -> None:
    client = make_client(api_key_hashes=HASHES, allowed_origins=("https://app.example",))
    preflight = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    response = await client.options("/v1/completions", headers=preflight)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://app.example"
    refused = await client.post("/v1/completions", json={}, headers={"origin": "https://app.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"
    foreign = await client.get("/live", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in foreign.headers


async def test_without_origins_there_is_no_cors(client: httpx.AsyncClient) -> None:
    response = await client.get("/live", headers={"origin": "https://app.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]


async def test_the_document_says_which_routes_need_a_key(make_client: ClientFactory) -> None:
    document = json.loads((await make_client(api_key_hashes=HASHES).get("/openapi.json", headers=GOOD)).text)
    assert document["security"] == [{"key": []}, {"header": []}]
    assert document["paths"]["/live"]["get"]["security"] == []

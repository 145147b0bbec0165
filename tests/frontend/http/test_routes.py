"""Paths and methods: behind a proxy's prefix, HEAD beside GET, and what there is not."""

from __future__ import annotations

import httpx
import pytest
from starlette.routing import Route

from splitserve.engine_core.errors import ConfigError
from splitserve.frontend.app import create_app
from splitserve.frontend.config import OWN_PREFIXES
from splitserve.frontend.http.api_keys import hash_key
from tests.frontend.http.app_fixtures import ClientFactory, ServerFactory, make_config
from tests.frontend.http.fake_pool import FakePool

KEY = "sk-first-key"
GOOD = {"authorization": f"Bearer {KEY}"}


def routes() -> list[Route]:
    """All of the application's."""
    return [route for route in create_app(make_config(), FakePool()).routes if isinstance(route, Route)]


@pytest.mark.parametrize("prefix", ["", "/llm", "/a/b"])
@pytest.mark.parametrize("root_path", ["/llm", "/a/b"])
async def test_routes_are_found_whether_the_proxy_strips_its_prefix_or_not(
    make_server: ServerFactory, prefix: str, root_path: str
) -> None:
    status = 404 if prefix not in ("", root_path) else 200
    url = await make_server(root_path=root_path)
    async with httpx.AsyncClient(base_url=url + prefix) as client:
        for path in ("/live", "/v1/models", "/v1/models/org/demo", "/docs", "/openapi.json", "/metrics"):
            assert (await client.get(path)).status_code == status, path
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == status


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/live", 200),
        ("/llm/live", 200),
        ("/metrics", 200),
        ("/llm/metrics", 200),
        ("/llm", 401),
        ("/llm/", 200),
        ("/llm/v1/models", 401),
        ("/v1/models", 401),
        ("/llm/llm/live", 401),
        ("/llmx/live", 401),
        ("/llm//live", 401),
        ("/live%2f..%2fv1/models", 401),
        ("/llm/live/..%2fv1/models", 401),
    ],
)
async def test_keys_are_asked_for_by_the_path_that_is_routed(
    make_server: ServerFactory, path: str, status: int
) -> None:
    url = await make_server(api_key_hashes=(hash_key(KEY),), root_path="/llm", public_paths=("/metrics",))
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get(path)).status_code == status
        with_key = await client.get(path, headers=GOOD)
        assert with_key.status_code in (200, 404)
        if status == 200:
            assert with_key.status_code == 200


async def test_metrics_and_documents_know_the_route_and_the_prefix(make_client: ClientFactory) -> None:
    client = make_client(root_path="/llm")
    for path in ("/version", "/llm/version", "/llm/v1/models/org/demo"):
        assert (await client.get(path)).status_code == 200
    text = (await client.get("/llm/metrics")).text
    assert (
        'http_requests_total{frontend="frontend-0",handler="/version",method="GET",status="200"} 2.0' in text
    )
    assert 'handler="/v1/models/{model_id:path}",method="GET",status="200"} 1.0' in text
    assert "/llm" not in text
    assert (await client.get("/llm/openapi.json")).json()["servers"] == [{"url": "/llm"}]
    assert "/llm/openapi.json" in (await client.get("/docs")).text
    assert "/llm/docs" in (await client.get("/nothing")).json()["error"]["message"]


def test_a_prefix_that_routes_begin_with_is_refused() -> None:
    paths = [route.path.split("/{")[0] for route in routes()] + [
        "/v1/models/x",
        "/v1/responses/x",
        "/debug/requests/x",
    ]
    prefixes = {"/".join(path.split("/")[:end]) for path in paths for end in range(2, path.count("/") + 1)}
    assert prefixes == set(OWN_PREFIXES)
    for prefix in OWN_PREFIXES:
        with pytest.raises(ConfigError, match="--root-path must not be one of"):
            make_config(root_path=prefix)


@pytest.mark.parametrize("path", sorted({route.path for route in routes() if "GET" in (route.methods or ())}))
async def test_head_is_the_head_of_get(make_server: ServerFactory, path: str) -> None:
    url = await make_server()
    path = path.replace("{model_id:path}", "org/demo").replace("{request_id}", "none")
    path = path.replace("{response_id}", "none")
    async with httpx.AsyncClient(base_url=url) as client:
        got, head = await client.get(path), await client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        volatile = ("date", "x-request-id", *(("content-length",) if path == "/metrics" else ()))
        names = [name for name in got.headers if name not in volatile]
        assert [head.headers[name] for name in names] == [got.headers[name] for name in names]


async def test_head_is_logged_and_counted_as_itself(make_client: ClientFactory) -> None:
    client = make_client()
    await client.head("/version")
    assert 'handler="/version",method="HEAD",status="200"} 1.0' in (await client.get("/metrics")).text


async def test_head_where_there_is_no_get_is_405_without_a_body(make_server: ServerFactory) -> None:
    async with httpx.AsyncClient(base_url=await make_server()) as client:
        response = await client.head("/v1/completions")
        assert (response.status_code, response.headers["allow"], response.content) == (405, "POST", b"")


async def test_a_wrong_method_is_405_and_names_the_right_ones(client: httpx.AsyncClient) -> None:
    for method, path, allow in (("GET", "/tokenize", "POST"), ("POST", "/v1/models", "GET, HEAD")):
        response = await client.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allow)
        words = allow.replace(", ", " and ")
        assert response.json()["error"]["message"] == f"{path} takes {words}, not {method}."


@pytest.mark.parametrize("hidden", [False, True])
async def test_an_unknown_route_names_the_documentation_where_it_is_served(
    make_client: ClientFactory, hidden: bool
) -> None:
    client = make_client(disable_docs=hidden)
    for path in ("/v1/moderations", "/docs" if hidden else "/nothing"):
        error = (await client.get(path)).json()["error"]
        see = "" if hidden else "; /docs shows what there is"
        assert (error["message"], error["code"]) == (f"There is no route {path}{see}.", "unknown_route")

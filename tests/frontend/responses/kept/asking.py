"""What clients ask of the routes below /v1/responses."""

from __future__ import annotations

from typing import Any

import httpx

PATH = "/v1/responses"
Json = dict[str, Any]


async def create(client: httpx.AsyncClient, **body: Any) -> Json:
    response = await client.post(PATH, json={"input": "hello"} | body)
    assert response.status_code == 200, response.text
    return response.json()


async def get(client: httpx.AsyncClient, response_id: str) -> Json:
    response = await client.get(f"{PATH}/{response_id}")
    assert response.status_code == 200, response.text
    return response.json()


async def items(client: httpx.AsyncClient, response_id: str, **query: Any) -> Json:
    response = await client.get(f"{PATH}/{response_id}/input_items", params=query)
    assert response.status_code == 200, response.text
    return response.json()


async def error(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> tuple[int, Json]:
    response = await client.request(method, f"{PATH}{path}", **options)
    return response.status_code, response.json()["error"]

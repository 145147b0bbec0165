"""truncate_prompt_tokens: which tokens of a prompt reach the engine."""

from __future__ import annotations

from typing import Literal

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.text.truncation import Truncation
from tests.frontend.http.fake_pool import BOS, MAX_MODEL_LEN, FakePool


async def sent(client: httpx.AsyncClient, pool: FakePool, path: str, **body: object) -> list[int]:
    """The token ids that the engine got."""
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return pool.seen[-1].request.prompt_token_ids


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"truncate_prompt_tokens": 3}, [4, 5, 6]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, [4, 5, 6]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, [1, 2, 3]),
        ({"truncate_prompt_tokens": 6}, [1, 2, 3, 4, 5, 6]),
        ({"truncate_prompt_tokens": MAX_MODEL_LEN}, [1, 2, 3, 4, 5, 6]),
        ({"truncate_prompt_tokens": -1}, [1, 2, 3, 4, 5, 6]),
        ({"truncate_prompt_tokens": None, "truncation_side": None}, [1, 2, 3, 4, 5, 6]),
        ({"truncation_side": "right"}, [1, 2, 3, 4, 5, 6]),
    ],
    ids=str,
)
async def test_a_prompt_of_ids_keeps_the_asked_end(
    client: httpx.AsyncClient, pool: FakePool, fields: dict, expected: list[int]
) -> None:
    assert await sent(client, pool, "/v1/completions", prompt=[1, 2, 3, 4, 5, 6], **fields) == expected


@pytest.mark.parametrize(("side", "expected"), [("left", b"ef"), ("right", b"ab")])
async def test_a_text_keeps_its_bos(
    client: httpx.AsyncClient, pool: FakePool, side: str, expected: bytes
) -> None:
    fields = {"truncate_prompt_tokens": 3, "truncation_side": side}
    assert await sent(client, pool, "/v1/completions", prompt="abcdef", **fields) == [BOS, *expected]


async def test_every_prompt_of_a_list_is_cut(client: httpx.AsyncClient, pool: FakePool) -> None:
    await sent(client, pool, "/v1/completions", prompt=[[1, 2, 3], [4]], truncate_prompt_tokens=2)
    assert [seen.request.prompt_token_ids for seen in pool.seen] == [[2, 3], [4]]


@pytest.mark.parametrize(
    ("fields", "room"), [({"max_tokens": 56}, 56), ({}, 16), ({"max_tokens": 0}, 1)], ids=str
)
async def test_minus_one_leaves_room_for_the_output_of_a_completion(
    client: httpx.AsyncClient, pool: FakePool, fields: dict, room: int
) -> None:
    asked = {"prompt": [7] * 1000, "truncate_prompt_tokens": -1} | fields
    assert len(await sent(client, pool, "/v1/completions", **asked)) == MAX_MODEL_LEN - room


@pytest.mark.parametrize(
    ("fields", "room"), [({"max_tokens": 56}, 56), ({"max_completion_tokens": 57}, 57), ({}, 1)], ids=str
)
async def test_minus_one_leaves_room_for_the_output_of_a_chat(
    client: httpx.AsyncClient, pool: FakePool, fields: dict, room: int
) -> None:
    asked = {"messages": [{"role": "user", "content": "x" * 9000}], "truncate_prompt_tokens": -1} | fields
    token_ids = await sent(client, pool, "/v1/chat/completions", **asked)
    assert len(token_ids) == MAX_MODEL_LEN - room
    assert bytes(token_ids).endswith(b"xx\nassistant: ")


async def test_a_chat_keeps_the_special_tokens_it_asked_for(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True}
    token_ids = await sent(client, pool, "/v1/chat/completions", truncate_prompt_tokens=5, **asked)
    assert token_ids == [BOS, *b"nt: "]


async def test_an_echo_shows_what_was_kept(client: httpx.AsyncClient) -> None:
    asked = {"prompt": "abcdef", "truncate_prompt_tokens": 2, "add_special_tokens": False, "echo": True}
    assert (await client.post("/v1/completions", json=asked)).json()["choices"][0]["text"] == "efHi there"


@pytest.mark.parametrize("value", [0, -2, MAX_MODEL_LEN + 1, 2**70])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
async def test_another_number_is_refused_with_the_range(
    client: httpx.AsyncClient, path: str, body: dict, value: int
) -> None:
    response = await client.post(path, json=body | {"truncate_prompt_tokens": value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "truncate_prompt_tokens"


async def test_what_leaves_no_room_for_the_output_is_refused(client: httpx.AsyncClient) -> None:
    asked = {"prompt": [7] * 300, "truncate_prompt_tokens": MAX_MODEL_LEN, "max_tokens": 5}
    error = (await client.post("/v1/completions", json=asked)).json()["error"]
    assert error["code"] == "context_length_exceeded"


async def test_tokenize_counts_prompts_whole(client: httpx.AsyncClient) -> None:
    response = await client.post("/tokenize", json={"prompt": "abc", "truncate_prompt_tokens": 2})
    assert response.json()["error"]["param"] == "truncate_prompt_tokens"


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=12),
    st.integers(1, 14),
    st.sampled_from(["left", "right"]),
    st.integers(0, 1),
    st.integers(0, 1),
)
def test_a_cut_keeps_order_length_and_what_stands_around(
    ids: list[int], most: int, side: Literal["left", "right"], num_before: int, num_after: int
) -> None:
    # Positions instead of values, so that every token is told from its equals.
    places = list(range(len(ids)))
    kept = Truncation(most, side).cut(places, num_before, num_after)
    assert len(kept) == min(most, len(places))
    assert kept == sorted(set(kept))
    if most > num_before + num_after:
        assert kept[:num_before] == places[:num_before]
        assert kept[len(kept) - num_after :] == places[len(places) - num_after :]

"""The OpenAPI document says what the server does: routes, fields, ranges, errors."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from msgspec import Struct

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.anthropic.schema.request import MessagesRequest
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.completions import CompletionRequest
from splitserve.frontend.responses.schema.request import ResponsesRequest
from tests.frontend.http.app_fixtures import ClientFactory


@pytest.fixture
async def document(client: httpx.AsyncClient) -> dict:
    return (await client.get("/openapi.json")).json()


def references(node: object) -> set[str]:
    """All $ref targets anywhere in a document."""
    if isinstance(node, list):
        return set().union(*(references(item) for item in node)) if node else set()
    if not isinstance(node, dict):
        return set()
    inner = set().union(set(), *(references(item) for item in node.values()))
    return inner | ({node["$ref"]} if "$ref" in node else set())


def test_every_reference_resolves_and_every_schema_is_used(document: dict) -> None:
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) == schemas


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/completions", CompletionRequest),
        ("/v1/chat/completions", ChatRequest),
        ("/v1/messages", MessagesRequest),
        ("/v1/responses", ResponsesRequest),
    ],
)
def test_request_bodies_are_the_structs_that_decode_them(
    document: dict, path: str, kind: type[Struct]
) -> None:
    operation = document["paths"][path]["post"]
    assert operation["requestBody"]["required"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    properties = document["components"]["schemas"][reference.rpartition("/")[2]]["properties"]
    assert sorted(properties) == sorted(kind.__struct_fields__)
    assert "text/event-stream" in operation["responses"]["200"]["content"]


def test_every_post_names_its_errors(document: dict) -> None:
    operations = [each["post"] for each in document["paths"].values() if "post" in each]
    posts = [operation for operation in operations if "requestBody" in operation]
    assert len(posts) == 21
    for operation in posts:
        assert {"400", "401", "404", "408", "413", "415", "429", "500", "503"} <= set(operation["responses"])


def test_errors_name_the_header_that_comes_with_them(document: dict) -> None:
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if "Error" in str(answer["content"]):
                    names = {"401": ["WWW-Authenticate"], "429": ["Retry-After"], "503": ["Retry-After"]}
                    assert list(answer.get("headers", {})) == names.get(status, [])


def test_no_operation_is_documented_for_head(document: dict) -> None:
    assert not [path for path, operations in document["paths"].items() if "head" in operations]


def test_every_answer_of_a_get_has_a_schema_and_probes_tell_their_failure(document: dict) -> None:
    gets = {path: operations["get"] for path, operations in document["paths"].items() if "get" in operations}
    for path, operation in gets.items():
        # What opens a WebSocket has no other answer but errors.
        answer = operation["responses"].get("200") or operation["responses"]["101"]
        for content in answer["content"].values():
            assert content["schema"], path
    assert list(gets["/metrics"]["responses"]["200"]["content"]) == ["text/plain"]
    for path in ("/health", "/ready"):
        responses = gets[path]["responses"]
        assert responses["503"]["content"] == responses["200"]["content"]


RANGED = [
    name
    for name in SamplingParams.__struct_fields__
    if name not in ("seed", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "prompt_logprobs")
    and name not in ("skip_special_tokens", "include_stop_str_in_output", "repetition_detection")
    and name not in ("use_beam_search", "best_of", "early_stopping", "detokenize")
    and name not in ("grammar", "structured_outputs")
    and not name.endswith(("_token_ids", "bad_words"))
]


@pytest.mark.parametrize("name", RANGED)
def test_documented_ranges_are_those_that_are_enforced(document: dict, name: str) -> None:
    schemas = document["components"]["schemas"]
    fields = schemas["ChatRequest"]["properties"] | schemas["CompletionRequest"]["properties"]
    low, high = fields[name]["minimum"], fields[name]["maximum"]
    whole = ("n", "top_k", "max_tokens", "min_tokens", "logprobs", "thinking_token_budget")
    kind = type(low) if name in whole else float
    step = 1 if kind is int else 1e-6
    open_low = name in ("top_p", "repetition_penalty")
    needed: dict[str, Any] = {
        "min_tokens": {"max_tokens": None},
        "length_penalty": {"use_beam_search": True},
    }
    others = needed.get(name, {})
    for value in (low + step if open_low else low, high):
        SamplingParams(**(others | {name: kind(value)})).validate()
    for value in (low if open_low else low - step, high + step):
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(**(others | {name: kind(value)})).validate()
        assert caught.value.param == name


async def test_the_document_is_the_same_with_and_without_strictness(make_client: ClientFactory) -> None:
    first, second = [(await make_client(strict=strict).get("/openapi.json")).text for strict in (False, True)]
    assert first == second

"""Every body that the OpenAPI document allows is taken, but for the reasons that docs/api.md names."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from splitserve.frontend.anthropic.schema import rules as messages_rules
from splitserve.frontend.app import create_app
from splitserve.frontend.openai.schema.rules import FIELDS, RULES
from splitserve.frontend.responses.schema import rules as responses_rules
from tests.frontend.http.app_fixtures import make_config, with_body_writers
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.openai.schema.schema_bodies import Bodies, Json

DOCUMENT = create_app(make_config(), FakePool()).openapi()
SCHEMAS = DOCUMENT["components"]["schemas"]
BODIES = Bodies(SCHEMAS)
PATHS = {
    "CompletionRequest": "/v1/completions",
    "ChatRequest": "/v1/chat/completions",
    "MessagesRequest": "/v1/messages",
    "CountTokensRequest": "/v1/messages/count_tokens",
    "ResponsesRequest": "/v1/responses",
    "CompactionRequest": "/v1/responses/compact",
    "EmbeddingRequest": "/v1/embeddings",
    "RerankRequest": "/v1/rerank",
    "ScoreRequest": "/v1/score",
    "ClassifyRequest": "/classify",
    "PoolingRequest": "/pooling",
    "TokenizeRequest": "/tokenize",
    "DetokenizeRequest": "/detokenize",
}
VECTORS = [PATHS[name] for name in ("EmbeddingRequest", "RerankRequest", "ScoreRequest", "PoolingRequest")]
# What the schema cannot say, by the words of the error; each row stands in docs/api.md too.
REASONS = {
    "depends on the model": [
        r"maximum context length",
        r"truncate_prompt_tokens must be -1 or",
        r"token ids must be from 0 to",
        r"must (contain|produce) at least one token",
        r"makes no tool calls",
        r"writes no reasoning",
        r"dimensions must be an integer from 1 to 12",
        r"instruction: the model takes none",
        r"has no labels to classify by",
    ],
    "compares two fields": [
        r"min_tokens must be an integer from 0 to",
        r"two tools have the name",
        r"is none of the tools of the request",
        r"best_of must",
        r"repetition_detection.min_pattern_size must be",
        r"with use_beam_search$",
        r"use_beam_search .*(160|vocabulary)",
        r"dimensions requires task: embed",
        r"normalize requires a task that makes vectors",
    ],
    "looks at the last of a list": [r"a tool_use needs a tool_result"],
    "depends on what is kept": [r"this server has no response store", r"Previous response with id"],
    "was sealed by the server": [r"encrypted_content was not made by this server"],
    "compares two lists": [r"text_1 must be one text, or as many as text_2"],
    "counts bytes": [r"must be 1 to 256 bytes long"],
    "counts sequences": [r"must be at most \d+, the number of sequences that can run and wait"],
}


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}})


def post(path: str, body: Json) -> httpx.Response:
    """Ask an app in this process."""

    async def ask() -> httpx.Response:
        labels = ["bad", "good"] if path == PATHS["ClassifyRequest"] else []
        pool = FakePool(embedding_size=12 if path in VECTORS else 0, labels=labels)
        app = with_body_writers(create_app(make_config(), pool))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://frontend"
        ) as client:
            return await client.post(path, json=body)

    return asyncio.run(ask())


def is_documented(response: httpx.Response) -> bool:
    message = response.json()["error"]["message"]
    return any(re.search(words, message) for rows in REASONS.values() for words in rows)


@pytest.mark.parametrize("name", PATHS)
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(data=st.data())
def test_a_body_of_the_schema_is_refused_for_documented_reasons_only(name: str, data: st.DataObject) -> None:
    body = data.draw(BODIES.of(name))
    response = post(PATHS[name], body)
    # A made-up name is no model; errors of the made-up engine do not belong here.
    unknown_model = response.status_code == 404 and "does not exist" in response.json()["error"]["message"]
    assert response.status_code == 200 or unknown_model or is_documented(response), response.text


USER = {"role": "user", "content": "x"}
BROKEN: list[tuple[str, Json]] = [
    ("TokenizeRequest", {}),
    ("TokenizeRequest", {"prompt": "x", "messages": [USER]}),
    ("TokenizeRequest", {"prompt": None, "messages": None}),
    (
        "TokenizeRequest",
        {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True},
    ),
    ("ChatRequest", {"messages": []}),
    ("ChatRequest", {"messages": [{"role": "user"}]}),
    ("ChatRequest", {"messages": [{"role": "user", "content": None}]}),
    ("ChatRequest", {"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]}),
    ("ChatRequest", {"messages": [{"role": "assistant", "tool_calls": []}]}),
    ("ChatRequest", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
    ("ChatRequest", {"messages": [{"role": "user", "content": [{"type": "refusal", "text": "x"}]}]}),
    ("ChatRequest", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("ChatRequest", {"messages": [USER], "top_logprobs": 1}),
    ("ChatRequest", {"messages": [USER], "tool_choice": "required"}),
    ("ChatRequest", {"messages": [USER], "tool_choice": "any"}),
    ("ChatRequest", {"messages": [USER], "logprob_token_ids": [1]}),
    ("ChatRequest", {"messages": [USER], "logprobs": True, "top_logprobs": 21}),
    (
        "ChatRequest",
        {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True},
    ),
    ("CompletionRequest", {"prompt": []}),
    ("CompletionRequest", {"prompt": ["a", 1]}),
    ("CompletionRequest", {"prompt": [[]]}),
    ("CompletionRequest", {"prompt": [-1]}),
    ("CompletionRequest", {"prompt": ["a"] * 257}),
    ("CompletionRequest", {"prompt": "x", "stream_options": {}}),
    ("CompletionRequest", {"prompt": "x", "stream": True, "use_beam_search": True}),
    ("CompletionRequest", {"prompt": "x", "length_penalty": 0.5}),
    ("CompletionRequest", {"prompt": "x", "early_stopping": True}),
    ("CompletionRequest", {"prompt": "x", "logprob_token_ids": [1]}),
    ("CompletionRequest", {"prompt": "x", "top_p": 0}),
    ("CompletionRequest", {"prompt": "x", "timeout": 0}),
    ("CompletionRequest", {"prompt": "x", "stop": [""]}),
    ("CompletionRequest", {"prompt": "x", "stop": ["a"] * 17}),
    ("CompletionRequest", {"prompt": "x", "logit_bias": {"a": 1}}),
    ("CompletionRequest", {"prompt": "x", "logit_bias": {"1": 101}}),
    ("CompletionRequest", {"prompt": "x", "allowed_token_ids": []}),
    ("CompletionRequest", {"prompt": "x", "seed": 2**64}),
    ("CompletionRequest", {"prompt": "x", "request_id": "a b"}),
    ("CompletionRequest", {"prompt": "x", "truncate_prompt_tokens": 0}),
    ("CompletionRequest", {"prompt": "x", "priority": -(2**31)}),
    ("DetokenizeRequest", {"tokens": [-1]}),
    ("EmbeddingRequest", {}),
    ("EmbeddingRequest", {"input": []}),
    ("EmbeddingRequest", {"input": ["a", 1]}),
    ("EmbeddingRequest", {"input": ["a"] * 2049}),
    ("EmbeddingRequest", {"input": "x", "dimensions": 0}),
    ("EmbeddingRequest", {"input": "x", "encoding_format": "hex"}),
    ("EmbeddingRequest", {"input": "x", "truncate_prompt_tokens": 0}),
    ("EmbeddingRequest", {"input": "x", "priority": -(2**31)}),
    ("EmbeddingRequest", {"input": "x", "cache_salt": ""}),
    ("RerankRequest", {"query": "x"}),
    ("RerankRequest", {"query": "x", "documents": []}),
    ("RerankRequest", {"query": "x", "documents": "x"}),
    ("RerankRequest", {"query": "x", "documents": [{"title": "x"}]}),
    ("RerankRequest", {"query": "x", "documents": ["a"] * 2049}),
    ("RerankRequest", {"query": "x", "documents": ["x"], "top_n": 0}),
    ("ScoreRequest", {"text_1": "x"}),
    ("ScoreRequest", {"text_1": "x", "text_2": []}),
    ("ScoreRequest", {"text_1": "x", "text_2": ["x"] * 2049}),
    ("MessagesRequest", {"messages": [USER]}),
    ("MessagesRequest", {"messages": [], "max_tokens": 1}),
    ("MessagesRequest", {"messages": [USER], "max_tokens": 0}),
    ("MessagesRequest", {"messages": [USER], "max_tokens": 1, "stop_sequences": [""]}),
    ("CountTokensRequest", {"messages": [USER | {"role": "system"}]}),
    ("CountTokensRequest", {"messages": [USER | {"content": [{"type": "image"}]}]}),
    ("CountTokensRequest", {"messages": [USER | {"content": [{"type": "text"}]}]}),
    ("CountTokensRequest", {"messages": [USER | {"content": [{"type": "thinking", "thinking": "x"}]}]}),
    ("CountTokensRequest", {"messages": [USER], "system": [{"type": "image", "text": "x"}]}),
    ("CountTokensRequest", {"messages": [USER], "tools": [{"name": "f"}]}),
    ("CountTokensRequest", {"messages": [USER], "tool_choice": {"type": "any"}}),
    ("CountTokensRequest", {"messages": [USER], "tool_choice": {"type": "tool"}}),
    ("ResponsesRequest", {}),
    ("ResponsesRequest", {"input": []}),
    ("ResponsesRequest", {"input": [{"role": "user"}]}),
    ("ResponsesRequest", {"input": [{"role": "tool", "content": "x"}]}),
    ("ResponsesRequest", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("ResponsesRequest", {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}),
    ("ResponsesRequest", {"input": [{"type": "function_call_output", "call_id": "c"}]}),
    ("ResponsesRequest", {"input": [USER | {"content": [{"type": "input_text"}]}]}),
    ("ResponsesRequest", {"input": [USER | {"content": [{"type": "refusal", "text": "x"}]}]}),
    ("ResponsesRequest", {"input": [USER | {"content": [{"type": "input_image"}]}]}),
    ("ResponsesRequest", {"input": [USER | {"content": [{"type": "reasoning_text", "text": "x"}]}]}),
    ("ResponsesRequest", {"input": "x", "tools": [{"type": "function"}]}),
    ("ResponsesRequest", {"input": "x", "tools": [{"type": "web_search"}]}),
    ("ResponsesRequest", {"input": "x", "tool_choice": "required"}),
    ("ResponsesRequest", {"input": "x", "tool_choice": {"type": "function"}}),
    ("ResponsesRequest", {"input": "x", "tool_choice": {"type": "web_search"}}),
    ("ResponsesRequest", {"input": "x", "text": {"format": {"type": "json_schema", "name": "x"}}}),
    ("ResponsesRequest", {"input": "x", "top_logprobs": 1}),
    ("ResponsesRequest", {"input": "x", "stream_options": {}}),
    ("ResponsesRequest", {"input": "x", "max_output_tokens": 0}),
    ("ResponsesRequest", {"input": "x", "include": ["web_search_call.results"]}),
    ("ResponsesRequest", {"input": "x", "metadata": {str(i): "" for i in range(17)}}),
    ("ResponsesRequest", {"input": "x", "metadata": {"k" * 65: ""}}),
    ("ResponsesRequest", {"input": "x", "metadata": {"k": "v" * 513}}),
]


@pytest.mark.parametrize(("name", "body"), BROKEN, ids=str)
def test_schema_and_server_refuse_the_same_body(name: str, body: Json) -> None:
    assert not validator(name).is_valid(body)
    assert post(PATHS[name], body).status_code == 400


TAKEN: list[tuple[str, Json]] = [
    ("TokenizeRequest", {"prompt": "x", "messages": None}),
    ("TokenizeRequest", {"messages": [USER], "prompt": None}),
    ("ChatRequest", {"messages": [{"role": "assistant", "refusal": "x"}]}),
    ("ChatRequest", {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}),
    ("ChatRequest", {"messages": [USER], "continue_final_message": True}),
    ("ChatRequest", {"messages": [USER], "add_generation_prompt": False, "continue_final_message": True}),
    ("CompletionRequest", {"prompt": "x", "use_beam_search": True, "length_penalty": 2, "n": 2}),
    ("MessagesRequest", {"messages": [USER], "max_tokens": 1, "system": [{"type": "text", "text": "x"}]}),
    ("CountTokensRequest", {"messages": [{"role": "assistant", "content": []}], "thinking": None}),
    ("CompletionRequest", {"prompt": "x", "stream": None, "stream_options": None, "top_p": 1e-9}),
    ("ResponsesRequest", {"input": [USER | {"type": None}, {"type": "reasoning"}], "top_logprobs": 0}),
    (
        "ResponsesRequest",
        {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 2, "tool_choice": None},
    ),
]


@pytest.mark.parametrize(("name", "body"), TAKEN, ids=str)
def test_schema_and_server_take_the_same_body(name: str, body: Json) -> None:
    assert validator(name).is_valid(body)
    assert post(PATHS[name], body).status_code == 200


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_every_schema_is_one(schema: Json) -> None:
    assert Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(schema)


def test_every_rule_is_of_a_schema_that_exists() -> None:
    for rules, fields in (
        (RULES, FIELDS),
        (messages_rules.RULES, messages_rules.FIELDS),
        (responses_rules.RULES, responses_rules.FIELDS),
    ):
        assert {*rules, *(name for name, _ in fields)} <= set(SCHEMAS)


@pytest.mark.parametrize(
    "content",
    [
        content["application/json"]
        for operation in DOCUMENT["paths"].values()
        # Files are uploaded as forms.
        if "application/json"
        in (content := operation.get("post", {}).get("requestBody", {}).get("content", {}))
    ],
    ids=lambda content: content["schema"]["$ref"].rpartition("/")[2],
)
def test_the_example_of_a_body_fits_its_schema(content: dict) -> None:
    schema = content["schema"] | {"components": DOCUMENT["components"]}
    assert list(Draft202012Validator(schema).iter_errors(content["example"])) == []


@pytest.mark.parametrize("most", [0, 160])
def test_the_bound_of_logprobs_is_that_of_the_server(most: int) -> None:
    document = create_app(make_config(max_logprobs=most), FakePool()).openapi()
    schemas = document["components"]["schemas"]
    assert schemas["CompletionRequest"]["properties"]["logprobs"]["maximum"] == most
    assert schemas["ChatRequest"]["properties"]["top_logprobs"]["maximum"] == most
    assert schemas["ChatRequest"]["properties"]["prompt_logprobs"]["maximum"] == most


def test_the_reasons_are_documented() -> None:
    text = (Path(__file__).parents[4] / "docs" / "api.md").read_text()
    assert all(f"**{reason}**" in text for reason in REASONS)

"""Fields that are known and not served, and fields nobody knows."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import httpx
import pytest

from splitserve.frontend.anthropic.schema.refused import REFUSED_MESSAGES
from splitserve.frontend.openai.schema.missing_features import FEATURES
from splitserve.frontend.openai.schema.structured import StructuredOutputFields
from splitserve.frontend.openai.schema.unsupported import INSTEAD, REFUSED, REFUSED_CHAT, Accepted
from splitserve.frontend.responses.schema.refused import REFUSED_RESPONSES
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool

USER = {"role": "user", "content": "x"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [USER]},
}
BOTH = pytest.mark.parametrize("path", list(BODIES))

CHANGES_THE_OUTPUT = [
    ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "x", "format": "wav"}),
    ("verbosity", "low"),
    ("web_search_options", {}),
    ("suffix", "x"),
    ("guided_json", {}),
    ("guided_regex", "a"),
    ("guided_choice", ["a"]),
    ("guided_grammar", "a"),
    ("guided_json_object", True),
    ("guided_whitespace_pattern", "a"),
    ("structural_tag", {}),
    ("json_schema", {}),
    ("ebnf", "root ::= x"),
    ("spaces_between_special_tokens", False),
    ("chat_template", "{{ messages }}"),
    ("prompt_embeds", "AAAA"),
    ("kv_transfer_params", {"host": "10.0.0.1"}),
    ("logits_processors", ["x"]),
    ("typical_p", 0.5),
    ("regex", "a"),
    ("grammar", "root ::= x"),
    ("do_sample", False),
    ("num_beams", 4),
    ("beam_width", 4),
    ("num_beam_groups", 2),
    ("diversity_penalty", 0.5),
    ("num_return_sequences", 2),
    ("min_new_tokens", 5),
    ("max_new_tokens", 5),
    ("min_length", 5),
    ("max_length", 5),
    ("n_predict", 5),
    ("num_predict", 5),
    ("max_time", 0.5),
    ("stop_strings", ["x"]),
    ("repeat_penalty", 1.1),
    ("no_repeat_ngram_size", 2),
    ("encoder_repetition_penalty", 1.1),
    ("encoder_no_repeat_ngram_size", 2),
    ("penalty_alpha", 0.6),
    ("guidance_scale", 1.5),
    ("epsilon_cutoff", 0.1),
    ("eta_cutoff", 0.1),
    ("top_a", 0.1),
    ("tfs_z", 0.9),
    ("bad_words_ids", [[5]]),
    ("suppress_tokens", [5]),
    ("begin_suppress_tokens", [5]),
    ("sequence_bias", [[[5], 1.0]]),
    ("force_words", ["x"]),
    ("force_words_ids", [[5]]),
    ("forced_bos_token_id", 5),
    ("forced_eos_token_id", 5),
    ("exponential_decay_length_penalty", [5, 1.1]),
]
CHANGES_NOTHING = [
    ("tools", []),
    ("tools", None),
    ("tool_choice", "none"),
    ("tool_choice", "auto"),
    ("functions", None),
    ("response_format", {"type": "text"}),
    ("modalities", ["text"]),
    ("reasoning_effort", None),
    ("suffix", ""),
    ("use_beam_search", False),
    ("length_penalty", 1),
    ("early_stopping", False),
    ("do_sample", True),
    ("num_beams", 1),
    ("beam_width", None),
    ("diversity_penalty", 0.0),
    ("no_repeat_ngram_size", 0),
    ("min_new_tokens", 0),
    ("max_new_tokens", None),
    ("repeat_penalty", 1.0),
    ("force_words_ids", []),
    ("best_of", 1),
    ("guided_json", None),
    ("allowed_token_ids", None),
    ("bad_words", []),
    ("logprob_token_ids", []),
    ("repetition_detection", None),
    ("spaces_between_special_tokens", True),
    ("n", 1),
    ("user", "me"),
    ("metadata", {"a": "b"}),
    ("store", True),
    ("service_tier", "flex"),
    ("parallel_tool_calls", True),
    ("prediction", {"type": "content", "content": "x"}),
    ("prompt_cache_key", "x"),
    ("safety_identifier", "x"),
]


@BOTH
@pytest.mark.parametrize(("field", "value"), CHANGES_THE_OUTPUT, ids=lambda value: str(value)[:30])
async def test_a_field_that_would_change_the_output_is_refused_by_name(
    client: httpx.AsyncClient, pool: FakePool, path: str, field: str, value: object
) -> None:
    response = await client.post(path, json=BODIES[path] | {field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert not pool.seen


@pytest.mark.parametrize("field", INSTEAD)
async def test_a_refusal_names_our_field_for_the_same_purpose(client: httpx.AsyncClient, field: str) -> None:
    from splitserve.frontend.openai.schema.completions import CompletionRequest

    (value,) = [value for name, value in CHANGES_THE_OUTPUT if name == field]
    response = await client.post("/v1/completions", json={"prompt": "x", field: value})
    message = response.json()["error"]["message"]
    assert message.startswith(f"{field} is not supported, use {INSTEAD[field]} instead; it may only be null")
    ours = re.findall(r"[a-z_]{4,}|\bn\b", INSTEAD[field])
    assert ours
    known = {*CompletionRequest.__struct_fields__, *StructuredOutputFields.__struct_fields__}
    assert set(ours) <= known


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "tools",
            [{}],
            'tools: tool calling outside of a chat is not supported yet; it may only be null, [], {} or ""',
        ),
        (
            "tool_choice",
            "required",
            "tool_choice: making the model call a tool outside of a chat is not supported yet; it may only "
            'be null, "none" or "auto"',
        ),
        (
            "guided_json",
            {},
            "guided_json is not supported, use structured_outputs.json instead; it may only be null",
        ),
        ("top_a", 0.5, "top_a: it is not supported; it may only be null or 0"),
        (
            "repeat_penalty",
            2,
            "repeat_penalty is not supported, use repetition_penalty instead; it may only be null or 1",
        ),
        (
            "do_sample",
            False,
            "do_sample is not supported, use temperature: 0 instead; it may only be null or true",
        ),
    ],
)
async def test_a_refusal_says_what_is_missing_and_which_values_are_accepted(
    client: httpx.AsyncClient, field: str, value: object, message: str
) -> None:
    response = await client.post("/v1/completions", json={"prompt": "x", field: value})
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("path", "name", "accepted"),
    [
        *(("/v1/completions", name, accepted) for name, accepted in REFUSED.items() if name == "tools"),
        *(("/v1/chat/completions", name, accepted) for name, accepted in REFUSED_CHAT.items()),
    ],
)
async def test_what_a_refusal_says_is_accepted_is_accepted(
    client: httpx.AsyncClient, path: str, name: str, accepted: Accepted
) -> None:
    for text in re.split(", | or ", str(accepted)):
        value = json.loads(text)
        response = await client.post(path, json=BODIES[path] | {name: value})
        assert response.status_code == 200, response.text


def test_features_are_of_fields_that_are_refused() -> None:
    assert FEATURES.keys() <= REFUSED.keys() | REFUSED_RESPONSES.keys() | REFUSED_MESSAGES.keys()
    assert not FEATURES.keys() & INSTEAD.keys()


async def test_a_budget_of_reasoning_is_for_a_chat(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", json={"prompt": "x", "thinking_token_budget": 5})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "thinking_token_budget")
    assert error["code"] == "unsupported_parameter"


async def test_a_reasoning_effort_is_for_a_chat(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", json={"prompt": "x", "reasoning_effort": "high"})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "reasoning_effort")
    assert error["message"] == (
        "reasoning_effort: a reasoning effort outside of a chat is not supported yet; it may only be null or "
        '"none"'
    )


@BOTH
@pytest.mark.parametrize(("field", "value"), CHANGES_NOTHING, ids=lambda value: str(value)[:30])
async def test_values_that_change_nothing_are_accepted_even_in_strict_mode(
    make_client: ClientFactory, path: str, field: str, value: object
) -> None:
    response = await make_client(strict=True).post(path, json=BODIES[path] | {field: value})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
async def test_parts_that_are_not_text_are_refused_and_nothing_is_fetched(
    client: httpx.AsyncClient, kind: str
) -> None:
    part = {"type": kind, kind: {"url": "http://169.254.169.254/latest"}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}
    error = (await client.post("/v1/chat/completions", json=body)).json()["error"]
    assert (error["param"], error["code"]) == ("messages[0].content[1].type", "unsupported_parameter")


@BOTH
async def test_an_unknown_field_is_ignored_and_named_once_in_the_log(
    client: httpx.AsyncClient, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "frontend"):
        for _ in range(3):
            response = await client.post(path, json=BODIES[path] | {"temprature\nforged line": 0})
            assert response.status_code == 200
    lines = [record.message for record in caplog.records if "unknown_field" in record.message]
    assert lines == ['unknown_field_ignored field="temprature\\nforged line"']


@BOTH
async def test_strict_mode_refuses_unknown_fields_by_name(make_client: ClientFactory, path: str) -> None:
    response = await make_client(strict=True).post(path, json=BODIES[path] | {"temprature": 0})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("temprature", "unknown_parameter")


NESTED = [  # what is added to a body, path of it, path without indices
    ({"messages": [USER, USER | {"wieght": 1}]}, "messages[1].wieght", "messages[].wieght"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "weight": 1}]}]},
        "messages[0].content[0].weight",
        "messages[].content[].weight",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}, "index": 0}]}]},
        "messages[0].tool_calls[0].index",
        "messages[].tool_calls[].index",
    ),
    (
        {"messages": [USER | {"function_call": {"name": "f"}}]},
        "messages[0].function_call",
        "messages[].function_call",
    ),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "stream_options.usage"),
]


@pytest.mark.parametrize(("fields", "place", "pattern"), NESTED, ids=[row[1] for row in NESTED])
async def test_an_unknown_field_inside_a_body_is_treated_as_one_of_the_body(
    make_client: ClientFactory, caplog: pytest.LogCaptureFixture, fields: dict, place: str, pattern: str
) -> None:
    path = "/v1/chat/completions"
    with caplog.at_level(logging.INFO, "frontend"):
        response = await make_client().post(path, json=BODIES[path] | fields)
        assert response.status_code == 200, response.text
    assert [line for line in caplog.messages if "unknown_field" in line and pattern in line]
    response = await make_client(strict=True).post(path, json=BODIES[path] | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (place, "unknown_parameter")


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"messages": [USER | {"cache_control": {"type": "ephemeral"}}]},
        {"messages": [USER | {"provider_specific_fields": {"reasoning": None}}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]}]},
    ],
    ids=str,
)
async def test_what_changes_nothing_inside_a_body_is_no_unknown_field(
    make_client: ClientFactory, fields: dict[str, Any]
) -> None:
    path = "/v1/chat/completions"
    response = await make_client(strict=True).post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text


async def test_an_answer_can_be_sent_back_as_a_message_in_strict_mode(make_client: ClientFactory) -> None:
    client, path = make_client(strict=True), "/v1/chat/completions"
    answer = (await client.post(path, json=BODIES[path])).json()["choices"][0]["message"]
    response = await client.post(path, json={"messages": [USER, answer, USER]})
    assert response.status_code == 200, response.text


async def test_names_of_unknown_fields_are_remembered_up_to_a_bound() -> None:
    from splitserve.frontend.typed_json.unknown import UnknownField
    from splitserve.frontend.unknown_fields import MAX_NAMES, UnknownFields

    unknown = UnknownFields(strict=False)
    unknown.check([UnknownField((f"f{i}",), 1) for i in range(1000)])
    assert len(unknown._logged) == MAX_NAMES

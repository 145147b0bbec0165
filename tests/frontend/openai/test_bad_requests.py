"""Everything a client can get wrong, as a table: status, code and param of the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from tests.frontend.http.fake_pool import VOCAB_SIZE, FakePool

CHAT = {"messages": [{"role": "user", "content": "x"}]}
TEXT = {"prompt": "x"}


def check_error(response: httpx.Response, status: int, code: str, param: str | None) -> None:
    """The one error object, with nothing of the inside in it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert 0 < len(error["message"]) <= 600
    assert not any(word in error["message"] for word in ("Traceback", "/secret", ".py", "0x"))


VALUES = [  # field, value, param of the error
    *(("n", value, "n") for value in (0, -1, 17, 10**9)),
    *(("max_tokens", value, "max_tokens") for value in (-1, 2**31, 2**63)),
    *(("temperature", value, "temperature") for value in (-1, 2.01, 1e308)),
    *(("top_p", value, "top_p") for value in (0, -0.1, 1.0001)),
    *(("top_k", value, "top_k") for value in (-2, 2**31)),
    *(("min_p", value, "min_p") for value in (-0.1, 1.1)),
    *(("presence_penalty", value, "presence_penalty") for value in (-2.1, 1e30)),
    *(("frequency_penalty", value, "frequency_penalty") for value in (2.1, -1e30)),
    *(("repetition_penalty", value, "repetition_penalty") for value in (0, -1, 1e30)),
    *(("seed", value, "seed") for value in (2**64, -(2**63) - 1)),
    ("stop", "", "stop[0]"),
    ("stop", ["a", ""], "stop[1]"),
    ("stop", ["x"] * 17, "stop"),
    ("stop", ["x"] * 10_000, "stop"),
    ("stop", "x" * 2**20, "stop[0]"),
    ("stop_token_ids", [VOCAB_SIZE], "stop_token_ids"),
    ("stop_token_ids", [-1], "stop_token_ids"),
    ("stop_token_ids", [1] * 129, "stop_token_ids"),
    ("min_tokens", -1, "min_tokens"),
    ("min_tokens", 17, "min_tokens"),
    ("logit_bias", {str(VOCAB_SIZE): 1}, "logit_bias"),
    ("logit_bias", {"-1": 1}, "logit_bias"),
    ("logit_bias", {"x": 1}, "logit_bias"),
    ("logit_bias", {"٣": 1}, "logit_bias"),
    ("logit_bias", {"1": 1, "01": 2}, "logit_bias"),
    ("logit_bias", {"1": 1e9}, "logit_bias"),
    ("logit_bias", {str(i): 1 for i in range(301)}, "logit_bias"),
    ("logit_bias", {str(i): 1 for i in range(100_000)}, "logit_bias"),
    *(("allowed_token_ids", value, "allowed_token_ids") for value in ([], [1] * 10_001, [-1], [VOCAB_SIZE])),
    ("bad_words", ["x"] * 129, "bad_words"),
    ("bad_words", ["a", ""], "bad_words[1]"),
    ("bad_words", ["x" * 257], "bad_words[0]"),
    ("bad_words", ["é" * 129], "bad_words[0]"),
    ("logprob_token_ids", [1], "logprob_token_ids"),
    *(
        ("repetition_detection", value, "repetition_detection.max_pattern_size")
        for value in ({"max_pattern_size": 0}, {"max_pattern_size": 1025})
    ),
    *(
        (
            "repetition_detection",
            {"max_pattern_size": 4, "min_pattern_size": value},
            "repetition_detection.min_pattern_size",
        )
        for value in (0, 5)
    ),
    *(
        (
            "repetition_detection",
            {"max_pattern_size": 4, "min_count": value},
            "repetition_detection.min_count",
        )
        for value in (1, 1025)
    ),
    ("prompt_logprobs", 21, "prompt_logprobs"),
    ("cache_salt", "", "cache_salt"),
    ("cache_salt", "x" * 129, "cache_salt"),
    ("priority", 2**31, "priority"),
    ("priority", -(2**31), "priority"),
    ("request_id", "a b", "request_id"),
    ("request_id", "x" * 101, "request_id"),
    ("model", "x" * 513, "model"),
    ("stream_options", {"include_usage": True}, "stream_options"),
]


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)])
@pytest.mark.parametrize(("field", "value", "param"), VALUES, ids=lambda value: str(value)[:24])
async def test_a_value_out_of_range_is_refused_by_name(
    client: httpx.AsyncClient, pool: FakePool, path: str, body: dict, field: str, value: object, param: str
) -> None:
    bounds = {} if field == "max_tokens" else {"max_tokens": 16}
    response = await client.post(path, json=body | bounds | {field: value})
    check_error(response, 400, "invalid_value", param)
    assert not pool.seen


ONE_ENDPOINT = [
    ("/v1/completions", TEXT, {"prompt": []}, "prompt"),
    ("/v1/completions", TEXT, {"prompt": [[]]}, "prompt[0]"),
    ("/v1/completions", TEXT, {"prompt": ["a", 1]}, "prompt"),
    ("/v1/completions", TEXT, {"prompt": [1, [2]]}, "prompt"),
    ("/v1/completions", TEXT, {"prompt": [VOCAB_SIZE]}, "prompt"),
    ("/v1/completions", TEXT, {"prompt": [[1], [-1]]}, "prompt[1]"),
    ("/v1/completions", TEXT, {"prompt": [10**30]}, "prompt"),
    ("/v1/completions", TEXT, {"prompt": "", "add_special_tokens": False}, "prompt"),
    ("/v1/completions", TEXT, {"prompt": ["a", ""], "add_special_tokens": False}, "prompt[1]"),
    ("/v1/completions", TEXT, {"prompt": ["a"] * 257}, "prompt"),
    ("/v1/completions", TEXT, {"prompt": None}, "prompt"),
    ("/v1/completions", TEXT, {"prompt": 1}, "prompt"),
    ("/v1/completions", TEXT, {"prompt": [1.5]}, "prompt[0]"),
    ("/v1/completions", TEXT, {"prompt": [True]}, "prompt[0]"),
    ("/v1/completions", TEXT, {"logprobs": 21}, "logprobs"),
    ("/v1/completions", TEXT, {"logprobs": True}, "logprobs"),
    ("/v1/completions", TEXT, {"best_of": 3, "n": 2}, "best_of"),
    ("/v1/completions", TEXT, {"best_of": 1, "n": 2}, "best_of"),
    *(
        ("/v1/completions", TEXT, {"logprobs": 0, "logprob_token_ids": value}, "logprob_token_ids")
        for value in ([1] * 129, [-1], [VOCAB_SIZE])
    ),
    (
        "/v1/completions",
        TEXT,
        {"repetition_detection": {"max_pattern_size": "a"}},
        "repetition_detection.max_pattern_size",
    ),
    (
        "/v1/completions",
        TEXT,
        {"repetition_detection": {"max_pattern_size": 2, "x": 1}},
        "repetition_detection",
    ),
    ("/v1/completions", TEXT, {"allowed_token_ids": ["a"]}, "allowed_token_ids[0]"),
    ("/v1/completions", TEXT, {"bad_words": "a"}, "bad_words"),
    ("/v1/chat/completions", CHAT, {"messages": []}, "messages"),
    ("/v1/chat/completions", CHAT, {"messages": None}, "messages"),
    ("/v1/chat/completions", CHAT, {"messages": [None]}, "messages[0]"),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": "r" * 65, "content": "x"}]}, "messages[0].role"),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    (
        "/v1/chat/completions",
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        "/v1/chat/completions",
        CHAT,
        {"messages": [{"role": "assistant", "content": [{"type": "refusal", "text": "x"}]}]},
        "messages[0].content[0].refusal",
    ),
    ("/v1/chat/completions", CHAT, {"messages": CHAT["messages"] * 4097}, "messages"),
    ("/v1/chat/completions", CHAT, {"max_tokens": 0}, "max_tokens"),
    ("/v1/chat/completions", CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
    ("/v1/chat/completions", CHAT, {"max_completion_tokens": -1}, "max_completion_tokens"),
    ("/v1/chat/completions", CHAT, {"logprobs": 1}, "logprobs"),
    ("/v1/chat/completions", CHAT, {"top_logprobs": 1}, "top_logprobs"),
    ("/v1/chat/completions", CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (
        "/v1/chat/completions",
        CHAT,
        {"add_generation_prompt": True, "continue_final_message": True},
        "continue_final_message",
    ),
    ("/v1/chat/completions", CHAT, {"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs[...]"),
    ("/tokenize", TEXT, {"messages": CHAT["messages"]}, "prompt"),
    ("/tokenize", {}, {}, "prompt"),
    ("/detokenize", {}, {"tokens": [VOCAB_SIZE]}, "tokens"),
    ("/detokenize", {}, {"tokens": [-1]}, "tokens"),
    ("/detokenize", {}, {"tokens": ["1"]}, "tokens[0]"),
]


@pytest.mark.parametrize(("path", "body", "change", "param"), ONE_ENDPOINT, ids=lambda value: str(value)[:40])
async def test_wrong_fields_of_one_endpoint_are_refused_by_name(
    client: httpx.AsyncClient, pool: FakePool, path: str, body: dict, change: dict, param: str
) -> None:
    check_error(await client.post(path, json=body | change), 400, "invalid_value", param)
    assert not pool.seen


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"prompt":"x",}',
        b'\xef\xbb\xbf{"prompt":"x"}',
        b'{"prompt":"\xff"}',
        b'{"prompt":"\xed\xa0\x80"}',
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"\x00"}',
        b'{"prompt":"x","temperature":NaN}',
        b'{"prompt":"x","temperature":Infinity}',
        b'{"prompt":"x","temperature":-Infinity}',
        b'{"prompt":"x","prompt":"y"}',
        b'{"prompt":"x","pr\\u006fmpt":"y"}',
        b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"prompt":[' + b"[]," * 300_000 + b"[]]}",
        b'{"a":{' + b",".join(b'"%d":1' % i for i in range(250_000)) + b"}}",
        b'{"prompt":"x' + b'\\"' * 100_000,
    ],
    ids=lambda raw: str(raw[:28]),
)
async def test_malformed_bodies_are_refused(client: httpx.AsyncClient, path: str, raw: bytes) -> None:
    response = await client.post(path, content=raw, headers={"content-type": "application/json"})
    wrong_type = raw in (b"[]", b"null", b'"x"')
    check_error(response, 400, "invalid_value" if wrong_type else "invalid_json", None)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {}, "prompt"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, "messages[0].role"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_a_missing_field_is_named(client: httpx.AsyncClient, path: str, body: dict, param: str) -> None:
    check_error(await client.post(path, json=body), 400, "missing_required_parameter", param)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"prompt":"x","temperature":1e999}', "temperature"),
        (b'{"prompt":"x","temperature":' + b"1" * 400 + b"}", "temperature"),
        (b'{"prompt":"x","seed":' + b"1" * 5000 + b"}", "seed"),
        (b'{"prompt":"x","n":' + b"1" * 400 + b"}", "n"),
        (b'{"prompt":"x","n":1.0}', "n"),
        (b'{"prompt":"x","max_tokens":1e3}', "max_tokens"),
    ],
)
async def test_numbers_beyond_their_type_are_refused(
    client: httpx.AsyncClient, raw: bytes, param: str
) -> None:
    response = await client.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    check_error(response, 400, "invalid_value", param)


def wrong_types() -> list[tuple[str, str, object]]:
    """Every field of both endpoints with every JSON type it must not have."""
    from splitserve.frontend.app import create_app
    from tests.frontend.http.app_fixtures import make_config

    schemas = create_app(make_config(), FakePool()).openapi()["components"]["schemas"]
    samples = {"string": "x", "number": 0.5, "boolean": True, "object": {"\u0000": None}, "array": [[None]]}
    found = []
    for path, name in (("/v1/completions", "CompletionRequest"), ("/v1/chat/completions", "ChatRequest")):
        for field, schema in schemas[name]["properties"].items():
            allowed = _types(schema, schemas)
            for kind, sample in samples.items():
                if kind not in allowed or kind in ("object", "array"):
                    found.append((path, field, sample))
    return found


def _types(schema: dict, schemas: dict) -> set[str]:
    if "$ref" in schema:
        return _types(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return set().union(*(_types(option, schemas) for option in schema["anyOf"]))
    # No sample is among the few values of an enumeration.
    return set() if "enum" in schema else {schema["type"]}


async def test_every_field_refuses_every_wrong_type(client: httpx.AsyncClient, pool: FakePool) -> None:
    cases = wrong_types()
    assert len(cases) > 200
    for path, field, sample in cases:
        base = TEXT if path == "/v1/completions" else CHAT
        if sample == {"\u0000": None} and field in ("stream_options", "chat_template_kwargs"):
            continue  # objects that may hold any key
        response = await client.post(path, json=base | {field: sample})
        assert response.status_code == 400, (field, sample, response.text)
        assert (response.json()["error"]["param"] or "").startswith(field), (field, sample, response.text)
    assert not pool.seen


@pytest.mark.parametrize(
    ("path", "body", "param", "parts"),
    [
        ("/v1/completions", {"prompt": [1] * 256}, None, ["256", "at least one"]),
        ("/v1/completions", {"prompt": [1] * 300}, None, ["256", "300"]),
        ("/v1/completions", {"prompt": [1] * 200, "max_tokens": 57}, "max_tokens", ["256", "200", "57"]),
        ("/v1/completions", {"prompt": [1] * 256, "max_tokens": 0}, None, ["256"]),
        ("/v1/completions", {"prompt": [[1], [1] * 256]}, None, ["256"]),
        ("/v1/chat/completions", CHAT | {"max_tokens": 255}, "max_tokens", ["256", "255"]),
        ("/v1/chat/completions", CHAT | {"max_completion_tokens": 255}, "max_completion_tokens", ["256"]),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x" * 300}]},
            None,
            ["256", "318"],
        ),
    ],
)
async def test_context_overflow_names_the_limit_the_prompt_and_what_was_asked(
    client: httpx.AsyncClient, path: str, body: dict, param: str | None, parts: list[str]
) -> None:
    response = await client.post(path, json=body)
    check_error(response, 400, "context_length_exceeded", param)
    message = response.json()["error"]["message"]
    # Clients of OpenAI's API look for these words to shorten a conversation.
    assert message.startswith("This model's maximum context length is 256 tokens. However, you")
    assert "Please reduce the length of the " in message
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "/v1/chat/completions",
            CHAT | {"max_tokens": 250},
            "This model's maximum context length is 256 tokens. However, you requested 269 tokens (19 in the "
            "messages, 250 in the completion). Please reduce the length of the messages or completion.",
        ),
        (
            "/v1/completions",
            {"prompt": [1] * 300},
            "This model's maximum context length is 256 tokens. However, your prompt resulted in 300 tokens. "
            "Please reduce the length of the prompt.",
        ),
    ],
)
async def test_context_overflow_is_said_as_openai_says_it(
    client: httpx.AsyncClient, path: str, body: dict, message: str
) -> None:
    assert (await client.post(path, json=body)).json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        ({"x": 1}, "token ids in decimal digits, got 'x'"),
        ({"1": 1, "": 1, "-2": 1, "é": 1}, "got '', '-2', 'é'"),
        ({f"k{i}": 1 for i in range(9)}, "got 'k0', 'k1', 'k2', 'k3', 'k4' and 4 more"),
        ({"k" * 1000: 1}, "got '" + "k" * 20 + "'"),
        ({"1": 1, "260": 1}, "from 0 to 259, got 260"),
        ({"1": 1, "7": 101}, "logit_bias of token 7 must be a number in [-100, 100], got 101.0"),
        ({"1": 1, "01": 1}, "token 1 twice"),
    ],
    ids=str,
)
async def test_errors_of_a_logit_bias_name_its_bad_keys(
    client: httpx.AsyncClient, bias: dict[str, float], words: str
) -> None:
    response = await client.post("/v1/completions", json=TEXT | {"logit_bias": bias})
    check_error(response, 400, "invalid_value", "logit_bias")
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
async def test_an_unknown_model_is_404(client: httpx.AsyncClient, path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {"/v1/chat/completions": CHAT, "/detokenize": {"tokens": [1]}}
    response = await client.post(path, json=bodies.get(path, TEXT) | {"model": "no/such"})
    check_error(response, 404, "model_not_found", "model")
    assert response.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    "path", ["/x", "/v1", "/v1/", "/v1/completions/", "/V1/completions", "/v1//completions", "/v1/../live/x"]
)
async def test_an_unknown_route_is_404(client: httpx.AsyncClient, path: str) -> None:
    for method in ("GET", "POST"):
        check_error(await client.request(method, path, json={}), 404, "unknown_route", None)


async def test_a_wrong_method_is_405_and_names_the_right_one(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/completions")
    check_error(response, 405, "method_not_allowed", None)
    assert response.headers["allow"] == "POST"
    check_error(await client.post("/v1/models"), 405, "method_not_allowed", None)


async def test_no_ready_engine_is_503_with_retry_after_and_no_address(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.state = "loading"
    response = await client.post("/v1/completions", json=TEXT)
    check_error(response, 503, "engine_unavailable", None)
    assert response.headers["retry-after"] == "1"


async def test_a_bug_is_500_with_fixed_words_and_the_server_lives_on(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        raise ZeroDivisionError("/secret/file.py")
        yield

    pool.script = script
    response = await client.post("/v1/completions", json=TEXT)
    check_error(response, 500, "internal_error", None)
    assert response.json()["error"]["message"] == "Internal server error."
    pool.script = None
    assert (await client.post("/v1/completions", json=TEXT)).status_code == 200

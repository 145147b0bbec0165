"""Whatever JSON a client puts into whatever field: an answer or a 400 that names it, never a 500."""

from __future__ import annotations

import logging

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.anthropic.schema.request import CountTokensRequest, MessagesRequest
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.completions import CompletionRequest
from splitserve.frontend.openai.schema.tokenize import DetokenizeRequest, TokenizeRequest
from splitserve.frontend.openai.schema.unsupported import (
    IGNORED,
    REFUSED,
    REFUSED_TOKENIZE,
    refuse_unsupported,
)
from splitserve.frontend.responses.schema.compaction import CompactionRequest
from splitserve.frontend.responses.schema.request import ResponsesRequest
from tests.frontend.http.app_fixtures import ServerFactory

ENDPOINTS = {
    "/v1/completions": (CompletionRequest, "prompt", b'"x"'),
    "/v1/chat/completions": (ChatRequest, "messages", b'[{"role":"user","content":"x"}]'),
    "/v1/messages": (MessagesRequest, "messages", b'[{"role":"user","content":"x"}],"max_tokens":4'),
    "/v1/messages/count_tokens": (CountTokensRequest, "messages", b'[{"role":"user","content":"x"}]'),
    "/v1/responses": (ResponsesRequest, "input", b'"x"'),
    "/v1/responses/compact": (CompactionRequest, "input", b'"x","model":"org/demo"'),
    "/tokenize": (TokenizeRequest, "prompt", b'"x"'),
    "/detokenize": (DetokenizeRequest, "tokens", b"[1]"),
}
# Python turns at most 4300 digits into an integer, or an integer into text.
DIGITS = b"9" * 4300
NUMBERS = [b"1e999", b"-1e999", b"9" * 5001, b"-" + b"9" * 5001, DIGITS, b"-" + DIGITS, b"1e308"]
VALUES = [
    *NUMBERS,
    b"1e-999",
    b"[%b]" % DIGITS,
    b"[[1e999]]",
    b'{"a":1e999}',
    b'{"1":%b}' % DIGITS,
    b'{"%b":1}' % DIGITS,
    b'{"max_pattern_size":%b}' % DIGITS,
    b'"\\u0000"',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\x00"',
    b'"\xff"',
    b"NaN",
    b"[" * 40 + b"]" * 40,
    b'{"a":1,"a":2}',
]
JSON_HEADERS = {"content-type": "application/json"}


def body_with(required: str, plain: bytes, field: str, value: bytes) -> bytes:
    """An object of one field and what else the endpoint requires."""
    rest = b"" if field == required else b'"%b":%b,' % (required.encode(), plain)
    return b'{%b"%b":%b}' % (rest, field.encode(), value)


@pytest.mark.parametrize("path", list(ENDPOINTS))
async def test_no_value_of_any_field_is_a_fault_of_the_server(
    client: httpx.AsyncClient, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind, required, plain = ENDPOINTS[path]
    caplog.set_level(logging.WARNING, "frontend")
    for field in sorted({*kind.__struct_fields__, *REFUSED_TOKENIZE, *IGNORED, "nobody_knows"}):
        for value in VALUES:
            content = body_with(required, plain, field, value)
            response = await client.post(path, content=content, headers=JSON_HEADERS)
            expected = (200, 400, 404) if field == "model" else (200, 400)
            assert response.status_code in expected, (field, value[:20], response.text)
            if response.status_code == 400:
                assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: f"{value[:6]} of {len(value)}")
async def test_a_refused_field_is_named_whatever_its_number(client: httpx.AsyncClient, value: bytes) -> None:
    content = body_with("prompt", b'"x"', "top_a", value)
    response = await client.post("/v1/completions", content=content, headers=JSON_HEADERS)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "top_a", "unsupported_parameter")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
async def test_huge_numbers_are_refused_over_a_socket_and_the_connection_lives_on(
    make_server: ServerFactory, path: str
) -> None:
    _, required, plain = ENDPOINTS[path]
    async with httpx.AsyncClient(base_url=await make_server(), headers=JSON_HEADERS) as client:
        for value in (b"1e999", b"9" * 5001):
            response = await client.post(path, content=body_with(required, plain, "top_a", value))
            assert (response.status_code, response.json()["error"]["param"]) == (400, "top_a")
        response = await client.post(path, content=body_with(required, plain, "top_a", b"0"))
        assert response.status_code == 200


_number = st.one_of(
    st.sampled_from(NUMBERS), st.integers().map(lambda number: b"%d" % number), st.just(b"-0.0e+00")
)
_text = st.text(max_size=6).map(lambda text: b'"%b"' % text.encode("utf-8", "surrogatepass"))
_value = st.recursive(
    st.one_of(_number, _text, st.sampled_from(VALUES)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: b"[%b]" % b",".join(items)),
        st.lists(st.tuples(_text, inner), max_size=3).map(
            lambda items: b"{%b}" % b",".join(b"%b:%b" % item for item in items)
        ),
    ),
    max_leaves=6,
)


def prompt_of(body: bytes) -> object:
    """The prompt of a body, None of one that is refused."""
    try:
        decoded = BodyDecoder(CompletionRequest).decode_now(body)
        refuse_unsupported(decoded.fields, REFUSED)
    except InvalidRequestError:
        return None
    return decoded.value.prompt


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(sorted(REFUSED)), _value), max_size=3), st.integers(0, 400))
def test_any_body_is_decoded_or_refused(fields: list[tuple[str, bytes]], end: int) -> None:
    whole = b"{%b}" % b",".join([b'"prompt":"x"', *(b'"%b":%b' % (n.encode(), v) for n, v in fields)])
    for body in (whole, whole[:end]):
        assert prompt_of(body) in ("x", None)

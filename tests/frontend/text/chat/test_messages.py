"""A script's messages and a request's are checked by one type, and templates are given one form of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.text.chat.messages import Message, read_conversation, template_messages

CALL = {"type": "function", "function": {"name": "add", "arguments": "{}"}}


def normal(*messages: object) -> list[Message]:
    return template_messages(read_conversation(messages)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        ({"role": "user", "content": "x", "name": None}, {"role": "user", "content": "x"}),
        ({"role": "user", "content": []}, {"role": "user", "content": []}),
        ({"role": "assistant", "refusal": "no"}, {"role": "assistant", "content": "no"}),
        (
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
        ),
        (
            {"role": "assistant", "content": "x", "thinking": "hm"},
            {"role": "assistant", "content": "x", "thinking": "hm"},
        ),
    ],
)
def test_a_message_has_one_form(given: dict, expected: dict) -> None:
    assert normal(given) == [expected]


def test_a_part_may_be_a_text_of_any_kind() -> None:
    parts = ["a", {"text": "b"}, {"type": "input_text", "text": "c"}, {"type": "refusal", "refusal": "d"}]
    (message,) = normal({"role": "user", "content": parts})
    assert message["content"] == [{"type": "text", "text": text} for text in "abcd"]


@pytest.mark.parametrize(
    ("message", "words", "param"),
    [
        ({"content": "x"}, "messages[0].role is missing", "messages[0].role"),
        ({"role": "user"}, "messages[0].content must be a text", "messages[0].content"),
        ({"role": "user", "content": 5}, "string or an array or null, got int", "messages[0].content"),
        ({"role": "user", "content": [5]}, "expected an object or a string", "messages[0].content[0]"),
        (
            {"role": "user", "content": [{"type": "image_url"}]},
            "input other than text",
            "messages[0].content[0].type",
        ),
        ({"role": "user", "content": [{}]}, "text is missing", "messages[0].content[0].text"),
        (
            {"role": "assistant", "tool_calls": [{"name": "add"}]},
            "function is missing",
            "messages[0].tool_calls[0].function",
        ),
        ({"role": "user", 5: 6}, "a key must be a string, got int", "messages[0]"),
    ],
)
def test_what_is_no_message_is_refused_by_its_place(message: dict, words: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        normal(message)
    assert words in str(caught.value)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "message",
    [
        {"role": "developer", "content": ["a", {"text": "b"}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "x", "tool_call_id": "c", "name": "f"},
        {"role": "user", "content": [{"type": "audio"}]},
        {"role": "user", "content": [{"type": "text", "text": 5}]},
        {"role": "user", "content": {"text": "x"}},
        {"role": "", "content": "x"},
    ],
    ids=str,
)
def test_a_request_and_a_script_have_the_same_prompts_and_errors(message: dict) -> None:
    def of_request() -> list[Message]:
        body = json.dumps({"messages": [message]}).encode()
        return template_messages(BodyDecoder(ChatRequest).decode_now(body).value.messages)

    found: list[object] = []
    for read in (of_request, lambda: normal(message)):
        try:
            found.append(read())
        except InvalidRequestError as error:
            found.append((str(error), error.param, error.code))
    assert found[0] == found[1]


def test_fields_that_no_template_sees_are_told() -> None:
    parts: Any = [{"type": "text", "text": "x", "cache_control": {}}]
    message = {"role": "user", "content": parts, "weight": 0}
    messages, unknown = read_conversation([message])
    assert [field.pattern for field in unknown] == ["messages[].weight", "messages[].content[].cache_control"]
    assert template_messages(messages) == [{"role": "user", "content": [{"type": "text", "text": "x"}]}]

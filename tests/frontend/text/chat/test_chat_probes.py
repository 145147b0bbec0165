"""Every template gets messages in the form that it wants, and shows what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.chat.template import ChatTemplate, template_sources
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import write_checkpoint
from tests.frontend.text.chat import templates

USER: Message = {"role": "user", "content": "add"}
PARTS = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "world"}]
CALLS = {
    "null_and_text": (templates.NULL_AND_TEXT, '<call>add\n{"a": [1, 2]}</call>'),
    "empty_and_objects": (
        templates.EMPTY_AND_OBJECTS,
        '<|im_start|>assistant\n<call>add {"a": [1, 2]}</call><|im_end|>',
    ),
    "argument_tags": (
        templates.ARGUMENT_TAGS,
        "<|im_start|>assistant\n<function=add><parameter=a>[1, 2]</parameter></function><|im_end|>",
    ),
    "harmony": (
        templates.HARMONY,
        '<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": [1, 2]}<|call|>',
    ),
    "thinking": (templates.THINKING, '<tool_call>add {"a": [1, 2]}</tool_call>'),
}


def load(directory: Path, source: str) -> ChatTemplate:
    write_checkpoint(directory, config={"eos_token": "<|im_end|>", "chat_template": source})
    tokenizer = Tokenizer(directory)
    return ChatTemplate(template_sources(directory, tokenizer), tokenizer)


@pytest.mark.parametrize("arguments", ['{"a": [1, 2]}', {"a": [1, 2]}], ids=["text", "object"])
@pytest.mark.parametrize(
    "content", [{}, {"content": None}, {"content": ""}], ids=["missing", "null", "empty"]
)
@pytest.mark.parametrize("family", CALLS)
def test_a_call_is_shown_however_it_is_given(
    tmp_path: Path, family: str, content: dict, arguments: str | dict
) -> None:
    source, expected = CALLS[family]
    call: Any = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
    message: Message = {"role": "assistant", **content, "tool_calls": [call]}
    assert load(tmp_path, source).render([USER, message]).text.count(expected) == 1


def test_words_beside_a_call_stay(tmp_path: Path) -> None:
    call: Any = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    message: Message = {"role": "assistant", "content": "Let me see.", "tool_calls": [call]}
    assert (
        "Let me see.<call>add {}</call>" in load(tmp_path, templates.EMPTY_AND_OBJECTS).render([message]).text
    )


ADD: Any = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [("I add.", "Hm.\n\nI add."), ("", "Hm."), (None, "Hm."), (PARTS, "Hm.\n\nHello\nworld")],
)
def test_a_template_that_takes_reasoning_or_content_beside_a_call_gets_both_as_one(
    tmp_path: Path, name: str, content: Any, expected: str
) -> None:
    message: Message = {"role": "assistant", "content": content, name: "Hm.", "tool_calls": [ADD]}
    result: Message = {"role": "tool", "content": "3", "tool_call_id": "c"}
    assert (
        load(tmp_path, templates.HARMONY)
        .render([USER, message, result])
        .text.endswith(
            f"<|start|>assistant<|channel|>analysis<|message|>{expected}<|end|>"
            "<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{}<|call|>"
            '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"3"<|end|><|start|>assistant'
        )
    )


@pytest.mark.parametrize("shown", ["reasoning", "reasoning_content", "thinking"])
@pytest.mark.parametrize("given", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_has_the_name_that_the_template_looks_for(tmp_path: Path, shown: str, given: str) -> None:
    source = "{% for message in messages %}[{{ message." + shown + " }}|{{ message.content }}]{% endfor %}"
    message: Message = {"role": "assistant", "content": "Yes.", given: "Hm."}
    assert load(tmp_path, source).render([message]).text == "[Hm.|Yes.]"


def test_of_several_names_of_reasoning_one_counts(tmp_path: Path) -> None:
    source = "{% for message in messages %}{{ message.thinking }}{{ message.reasoning }}{% endfor %}"
    message: Message = {"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}
    assert load(tmp_path, source).render([message]).text == "bb"


def test_content_beside_a_call_stays_apart_from_reasoning_where_both_may_stand(tmp_path: Path) -> None:
    message: Message = {"role": "assistant", "content": "I add.", "reasoning": "Hm.", "tool_calls": [ADD]}
    text = load(tmp_path, templates.EMPTY_AND_OBJECTS).render([USER, message]).text
    assert "assistant\nI add.<call>add {}</call>" in text


@pytest.mark.parametrize("arguments", ["", None], ids=["empty", "null"])
def test_a_call_without_arguments_has_none(tmp_path: Path, arguments: str | None) -> None:
    call: Any = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
    message: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert "<call>add {}</call>" in load(tmp_path, templates.EMPTY_AND_OBJECTS).render([message]).text


def test_arguments_that_are_no_object_stay_text(tmp_path: Path) -> None:
    call: Any = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "not json"}}
    message: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert '<call>add "not json"</call>' in load(tmp_path, templates.EMPTY_AND_OBJECTS).render([message]).text


@pytest.mark.parametrize(("role", "expected"), [("user", "Helloworld"), ("system", "Hello\nworld")])
def test_parts_are_joined_only_for_the_roles_that_do_not_take_them(
    tmp_path: Path, role: str, expected: str
) -> None:
    text = load(tmp_path, templates.USER_PARTS).render([{"role": role, "content": PARTS}, USER]).text
    assert f"<|im_start|>{role}\n{expected}<|im_end|>" in text


def test_no_part_is_lost_where_a_template_shows_only_the_first(tmp_path: Path) -> None:
    text = load(tmp_path, templates.FIRST_PART).render([{"role": "user", "content": PARTS}]).text
    assert "Hello\nworld<|im_end|>" in text


@pytest.mark.parametrize("source", [templates.PARTS, templates.PARTS_ONLY, templates.USER_PARTS])
def test_templates_that_take_parts_give_what_transformers_gives(tmp_path: Path, source: str) -> None:
    chat: list[Message] = [{"role": "user", "content": PARTS}]
    rendered = load(tmp_path, source).render(chat)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert rendered.text == theirs.apply_chat_template(chat, tokenize=False)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (templates.CHATML, True),
        (templates.LLAMA3, False),
        (templates.MISTRAL, False),
        (templates.THINKING, False),
    ],
)
def test_a_template_that_shows_no_tools_is_found_out(tmp_path: Path, source: str, expected: bool) -> None:
    template = load(tmp_path, source)
    assert template.shows_tools(ChatOptions()) == expected


def test_tools_may_be_shown_by_a_template_of_their_own(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_checkpoint(tmp_path))
    template = ChatTemplate({"default": templates.LLAMA3, "tool_use": templates.CHATML}, tokenizer)
    assert template.shows_tools(ChatOptions(tools=[{"name": "f"}]))
    assert not template.shows_tools(ChatOptions(template_name="default"))

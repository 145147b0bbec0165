"""Rendering equals transformers' apply_chat_template, and template faults are the request's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError, ModelLoadError
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.chat.template import ChatTemplate, template_sources
from splitserve.frontend.text.chat.template_process import RenderLimits
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import KINDS, write_checkpoint
from tests.frontend.text.chat import templates

FAMILIES = {
    "chatml": ("byte_level", templates.CHATML, {"eos_token": "<|im_end|>"}),
    "llama3": ("with_bos", templates.LLAMA3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    "mistral": (
        "sentencepiece",
        templates.MISTRAL,
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    ),
    "thinking": ("byte_level", templates.THINKING, {"eos_token": "<|im_end|>"}),
}
USER: Message = {"role": "user", "content": "Hello  world\n äöü 🙂 "}
ASSISTANT: Message = {"role": "assistant", "content": "<think> what if </think>\n\nHello the end"}
CHATS: dict[str, list[Message]] = {
    "one": [USER],
    "several": [USER, ASSISTANT, {"role": "user", "content": "one two <b>three</b> & {{ four }}"}],
    "empty": [{"role": "user", "content": ""}],
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "add", "description": "<äöü>", "parameters": {"b": 1, "a": [2]}},
    }
]


def checkpoint(directory: Path, family: str) -> Path:
    kind, template, config = FAMILIES[family]
    return write_checkpoint(directory, KINDS[kind](), {**config, "chat_template": template})


def load(directory: Path) -> ChatTemplate:
    tokenizer = Tokenizer(directory)
    return ChatTemplate(template_sources(directory, tokenizer), tokenizer)


def template_of(directory: Path, source: str) -> ChatTemplate:
    return load(write_checkpoint(directory, config={"eos_token": "<|im_end|>", "chat_template": source}))


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("family", FAMILIES)
def test_text_and_ids_equal_transformers(
    tmp_path: Path, family: str, tools: list[dict] | None, add_generation_prompt: bool, chat: str
) -> None:
    directory = checkpoint(tmp_path, family)
    theirs = PreTrainedTokenizerFast.from_pretrained(directory)
    options = ChatOptions(add_generation_prompt=add_generation_prompt, tools=tools)
    rendered = load(directory).render(CHATS[chat], options)
    args = {"add_generation_prompt": add_generation_prompt, "tools": tools}
    assert rendered.text == theirs.apply_chat_template(CHATS[chat], tokenize=False, **args)
    assert rendered.token_ids == theirs.apply_chat_template(CHATS[chat], return_dict=False, **args)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("content", ["Hello wor", "Hello wor  \n"])
def test_continuing_the_final_message_equals_transformers(tmp_path: Path, family: str, content: str) -> None:
    directory = checkpoint(tmp_path, family)
    theirs = PreTrainedTokenizerFast.from_pretrained(directory)
    chat = [USER, {"role": "assistant", "content": content}]
    rendered = load(directory).render(chat, ChatOptions(continue_final_message=True))
    assert rendered.text == theirs.apply_chat_template(chat, tokenize=False, continue_final_message=True)


def test_variables_reach_the_template(tmp_path: Path) -> None:
    template = load(checkpoint(tmp_path, "thinking"))
    rendered = template.render([USER], ChatOptions(variables={"enable_thinking": False}))
    assert rendered.text.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("name", ["messages", "tools", "_splitserve_check", "__class__", "a b"])
def test_variables_cannot_override_what_the_server_sets(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be set"):
        load(checkpoint(tmp_path, "chatml")).render([USER], ChatOptions(variables={name: []}))


def test_tool_arguments_become_objects(tmp_path: Path) -> None:
    call: Any = {"type": "function", "function": {"name": "add", "arguments": '{"a": [1, 2]}'}}
    chat: list[Message] = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    rendered = load(checkpoint(tmp_path, "thinking")).render(chat)
    assert '<tool_call>add {"a": [1, 2]}</tool_call>' in rendered.text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (templates.CHATML, "Hello\nworld"),
        (templates.PARTS, "Helloworld"),
        (templates.PARTS_ONLY, "Helloworld"),
    ],
)
def test_text_parts_are_given_in_the_form_the_template_understands(
    tmp_path: Path, source: str, expected: str
) -> None:
    parts: Any = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "world"}]
    template = template_of(tmp_path, source)
    assert f"user\n{expected}<|im_end|>" in template.render([{"role": "user", "content": parts}]).text
    assert "user\nplain<|im_end|>" in template.render([{"role": "user", "content": "plain"}]).text


@pytest.mark.parametrize("given", [5, "x", [1], {5: 6}, {"a b": 1}], ids=str)
def test_variables_that_are_none_are_refused_in_words(given: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"template variable") as caught:
        ChatOptions(variables=given)  # type: ignore[arg-type]
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("given", [5, {}, [5]], ids=str)
def test_tools_that_are_no_list_of_objects_are_refused_in_words(given: object) -> None:
    with pytest.raises(InvalidRequestError, match="tools must be a list of objects"):
        ChatOptions(tools=given)  # type: ignore[arg-type]


def test_a_template_refuses_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="Roles must alternate") as caught:
        load(checkpoint(tmp_path, "mistral")).render([ASSISTANT])
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.nothing.there }}",
        "{{ 1 / 0 }}",
        "{{ undefined_thing | tojson }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for a in range(100000000) %}{% endfor %}",
    ],
)
def test_a_failing_template_is_a_bad_request(tmp_path: Path, source: str) -> None:
    template = template_of(tmp_path, source)
    with pytest.raises(InvalidRequestError):
        template.render([USER])


@pytest.mark.parametrize("role", ["user", "x"])
def test_an_endless_template_can_be_loaded_and_is_stopped(tmp_path: Path, role: str) -> None:
    loops = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
    source = f"{{% if messages[0].role == '{role}' %}}{loops}{{% endif %}}"
    directory = write_checkpoint(tmp_path)
    template = ChatTemplate({"default": source}, Tokenizer(directory), RenderLimits(render_s=0.3))
    with pytest.raises(InvalidRequestError, match="took longer than"):
        template.render([{"role": role, "content": ""}])


def test_output_is_capped_by_the_context(tmp_path: Path) -> None:
    template = load(checkpoint(tmp_path, "chatml"))
    with pytest.raises(ContextLengthError, match="10 tokens"):
        template.render([{"role": "user", "content": "x" * 200}], max_model_len=10)


def test_no_messages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="at least one message"):
        load(checkpoint(tmp_path, "chatml")).render([])


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        load(checkpoint(tmp_path, "chatml")).render([{"role": "user", "content": "x", "extra": deep}])


def test_a_damaged_template_is_named_at_load(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="'default' line 1"):
        template_of(tmp_path, "{% for x in %}")


def test_named_templates_are_chosen_by_tools_and_by_name(tmp_path: Path) -> None:
    named = [
        {"name": name, "template": f"{name}{{{{ messages[0].content }}}}"} for name in ("default", "tool_use")
    ]
    directory = write_checkpoint(tmp_path, config={"chat_template": named})
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "rag.jinja").write_text("rag")
    template = load(directory)
    assert template.render([USER]).text.startswith("default")
    assert template.render([USER], ChatOptions(tools=TOOLS)).text.startswith("tool_use")
    assert template.render([USER], ChatOptions(template_name="rag")).text == "rag"
    with pytest.raises(InvalidRequestError, match="only default, tool_use, rag"):
        template.render([USER], ChatOptions(template_name="other"))


def test_chat_template_jinja_goes_first(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path, "chatml")
    (directory / "chat_template.jinja").write_text("file: {{ messages[0].content }}")
    assert load(directory).render([{"role": "user", "content": "x"}]).text == "file: x"


def test_a_checkpoint_may_have_no_template(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, config={})
    assert template_sources(directory, Tokenizer(directory)) == {}


def test_special_tokens_may_stand_in_the_old_map_file(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, config={"chat_template": "[{{ bos_token }}{{ eos_token }}]"})
    names = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|endoftext|>"}
    (directory / "special_tokens_map.json").write_text(json.dumps(names))
    assert load(directory).render([USER]).text == "[<|endoftext|><|im_end|>]"


async def test_rendering_off_the_loop_gives_the_same(tmp_path: Path) -> None:
    template = load(checkpoint(tmp_path, "chatml"))
    assert await template.render_async([USER]) == template.render([USER])

"""Formats found from templates, which are written here in the style of each family's own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.checkpoint.source import DEMO_MODEL
from splitserve.frontend.text.answers.detection import find_formats, with_overrides
from splitserve.frontend.text.answers.formats import (
    PLAIN_JSON,
    TOOL_FORMATS,
    AnswerFormats,
)
from splitserve.frontend.text.model_assets import load_model_assets
from tests.frontend.engines.messages import MODEL
from tests.frontend.text.answers.samples import THINK

_CALLS = "{%- if tools %}...{%- endif %}{%- for call in message.tool_calls %}"
# Template, name of the format of tool calls, of reasoning.
TEMPLATES = {
    "qwen2.5": (_CALLS + '{{ \'\\n<tool_call>\\n{"name": "\' }}', "hermes", None),
    "qwen3": (
        _CALLS
        + "{{ '\\n<tool_call>\\n' }}{%- if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}",
        "hermes",
        "think",
    ),
    "qwen3-coder": (
        _CALLS + "{{ '<tool_call>\\n<function=' + name + '>\\n<parameter=' }}",
        "qwen3_coder",
        None,
    ),
    "llama3.1": (
        "{%- if tools is not none %}Environment: ipython {{ '<|python_tag|>' + name + '.call(' }}",
        "llama3_json",
        None,
    ),
    "llama3.2": (
        '{%- if tools %}{{- \'Respond in the format {"name": function name, "parameters": dictionary\' }}',
        "llama3_json",
        None,
    ),
    "llama-pythonic": (
        "{%- if tools %}put it in the format of [func_name1(params_name1=v)]",
        "pythonic",
        None,
    ),
    "mistral": ("{%- if tools %}[AVAILABLE_TOOLS]{{ '[TOOL_CALLS][' }}", "mistral", None),
    "magistral": (
        "{%- if tools %}{{ '[TOOL_CALLS]' + '[THINK]' + text }}",
        "mistral",
        "mistral",
    ),
    "deepseek-v3": (
        "{%- if tools %}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\\n```json'}}",
        "deepseek_v3",
        None,
    ),
    "deepseek-v3.1": (
        "{%- if tools %}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>'}}</think>",
        "deepseek_v31",
        "think",
    ),
    "deepseek-r1-distill": (
        "{% if '</think>' in content %}{{'<｜Assistant｜><think>\\n'}}{{'<｜tool▁calls▁begin｜>```json'}}",
        None,
        "think",
    ),
    "kimi-k2": ("{%- if tools %}<|tool_calls_section_begin|>", "kimi_k2", None),
    "glm-4.5": ("{%- if tools %}<tool_call>{function-name}\\n<arg_key>{arg-key-1}</arg_key>", "glm45", None),
    "kimi-k2-thinking": (
        "{%- if tools %}<|tool_calls_section_begin|>{%- endif %}{{ '<think>' + reasoning + '</think>' }}",
        "kimi_k2",
        "think",
    ),
    "glm-4.6": (
        "{%- if tools %}<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>{%- endif %}"
        "{{ '\n<think></think>' if not enable_thinking }}",
        "glm45",
        "think",
    ),
    "granite-3.2": (
        "{%- if tools %}<|tool_call|>{%- endif %}Write your thoughts after 'Here is my thought process:' and "
        "write your response after 'Here is my response:' for each user query.",
        "granite",
        "granite",
    ),
    "granite-3.3": (
        "{%- if tools %}<|tool_call|>{%- endif %}Write your thoughts between <think></think> and write your "
        "response between <response></response> for each user query.",
        "granite",
        "granite_think",
    ),
    "granite-3.1": ("{%- if tools %}respond with <|tool_call|> followed by a JSON list", "granite", None),
    "phi-4-mini": ("{{ '<|tool|>' + tools + '<|/tool|>' }}", "phi4_mini_json", None),
    "functiongemma": (
        "{%- if tools %}<start_function_declaration>{{ '<start_function_call>call:' + name }}",
        "functiongemma",
        None,
    ),
    "gemma-4": ("{%- if tools %}<|tool>declaration:{{ '<|tool_call>call:' + name }}", "gemma4", None),
    "gpt-oss": ("{%- if tools %}<|channel|>commentary<|message|> {{ '<think>' }}", "harmony", "harmony"),
    "unknown": ("{%- if tools %}{{ tools | tojson }}", "json", None),
    "chatml": ("{{'<|im_start|>' + message['role']}}", None, None),
}


def names(formats: AnswerFormats) -> tuple[str | None, str | None]:
    reasoning, tools = formats
    return tools.name if tools else None, reasoning.name if reasoning else None


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_family_is_known_by_its_template(family: str) -> None:
    template, *expected = TEMPLATES[family]
    assert names(find_formats([template], [])) == tuple(expected)


def test_any_of_several_templates_may_show_the_format() -> None:
    plain, with_tools = TEMPLATES["chatml"][0], TEMPLATES["qwen2.5"][0]
    assert names(find_formats([plain, with_tools], [])) == ("hermes", None)


def test_tokens_tell_the_format_where_the_template_only_shows_tools() -> None:
    template = TEMPLATES["unknown"][0]
    assert names(find_formats([template], ["[INST]", "[TOOL_CALLS]"])) == ("mistral", None)
    assert names(find_formats([TEMPLATES["chatml"][0]], ["[TOOL_CALLS]", "<think>", "</think>"])) == (
        None,
        None,
    )


def test_without_a_template_nothing_is_known() -> None:
    assert find_formats([], ["<tool_call>"]) == AnswerFormats()


def test_the_demo_model_makes_tool_calls_and_thinks() -> None:
    info = msgspec.structs.replace(MODEL, path=str(DEMO_MODEL))
    assert Path(info.path).is_dir()
    assert names(load_model_assets(info).answer_formats) == ("hermes", "think")


@pytest.mark.parametrize("name", [*dict.fromkeys(each.name for each in TOOL_FORMATS), PLAIN_JSON.name])
def test_an_operator_may_name_the_format_of_tool_calls(name: str) -> None:
    found = AnswerFormats(THINK, TOOL_FORMATS[1])
    assert names(with_overrides(found, "auto", name)) == (name, "think")


def test_an_operator_may_name_the_format_of_reasoning_or_none() -> None:
    found = AnswerFormats(THINK, TOOL_FORMATS[1])
    assert names(with_overrides(found, "mistral", "auto")) == (TOOL_FORMATS[1].name, "mistral")
    assert names(with_overrides(found, "none", "none")) == (None, None)


@pytest.mark.parametrize("tools", [*TOOL_FORMATS, PLAIN_JSON], ids=lambda each: each.name)
def test_no_tag_that_is_looked_for_begins_another(tools: object) -> None:
    assert isinstance(tools, type(PLAIN_JSON))
    tags = {*tools.openers, tools.end} - {""}
    assert not [(a, b) for a in tags for b in tags if a != b and b.startswith(a)]

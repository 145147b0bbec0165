"""What templates use renders as apply_chat_template renders it, wherever a checkpoint keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from transformers import PreTrainedTokenizerFast

from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.chat.template import ChatTemplate, template_sources
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import write_checkpoint

CHAT: list[Message] = [
    {"role": "system", "content": "Be brief. <b>&</b>"},
    {"role": "user", "content": "  How is äöü\n spelt?  "},
    {"role": "assistant", "content": "So.", "reasoning_content": "Letter by letter."},
    {"role": "user", "content": "And 你好?"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds \"it\" <here> — 'now'",
            "parameters": {
                "type": "object",
                "properties": {"b": {"type": "string"}, "a": {"type": ["integer", "null"], "enum": [1, 2.5]}},
                "required": ["b"],
            },
        },
    }
]
DOCUMENTS = [{"title": "One", "text": "first\ntext"}, {"title": "Zwei", "text": "zweiter"}]
WORDS = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"


class Case(NamedTuple):
    """A template, and what is asked of it."""

    source: str
    options: dict[str, object] = {}  # noqa: RUF012 -- never changed
    variables: dict[str, object] = {}  # noqa: RUF012


CASES = {
    "tools as JSON": Case("{{ tools | tojson }}" + WORDS, {"tools": TOOLS}),
    "tools, indented": Case("{{ tools | tojson(indent=4) }}", {"tools": TOOLS}),
    "tools, sorted and tight": Case(
        "{{ tools | tojson(sort_keys=true, separators=(',', ':'), ensure_ascii=true) }}", {"tools": TOOLS}
    ),
    "tools by their fields": Case(
        "{%- for tool in tools %}\n{%- set f = tool.function %}\n{{ f.name }}: {{ f.description | trim }}"
        "{%- for name, spec in f.parameters.properties.items() %} {{ name }}={{ spec['type'] }}{% if name in "
        "f.parameters.required %}!{% endif %}{% endfor %}\n{%- endfor %}",
        {"tools": TOOLS},
    ),
    "no tools": Case(
        "{% if tools is none %}none{% else %}some{% endif %}{% if not documents %}none{% endif %}"
    ),
    "documents": Case(
        "{% for d in documents %}{{ loop.index0 }} {{ d.title }}\n{{ d['text'] }}{% if not loop.last %}, "
        "{% endif %}{% endfor %}",
        {"documents": DOCUMENTS},
    ),
    "thinking": Case(
        "{%- for m in messages %}{% if m.reasoning_content is defined and m.reasoning_content %}<think>"
        "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}",
        variables={"enable_thinking": False},
    ),
    "thinking under its older name": Case("{% for m in messages %}{{ m.thinking }}|{% endfor %}"),
    "generation blocks": Case(
        "{% set seen = 0 %}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{% set seen = 1 %}{{ m.content }}{{ loop.index }}{{ seen }}{% endgeneration %}{{ seen }}"
        "{% else %}{{ m.content }}\n{% endif %}\n{% endfor %}"
    ),
    "namespaces, loops that break, slices": Case(
        "{%- set ns = namespace(last=-1, system='') -%}\n{%- for m in messages[::-1] %}"
        "{% if m.role == 'user' %}{% set ns.last = loop.revindex0 %}{% break %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = m.content %}"
        "{% continue %}{% endif %}{{ ns.system if loop.index0 == ns.last }}"
        "{{ m.content.split('.')[-1].lstrip('\\n') }}{% endfor %}"
    ),
    "macros, filters and tests": Case(
        "{% macro show(m, end='') -%}<{{ m.role | upper }}>{{ m.content | trim }}{{ end }}{%- endmacro %}"
        "{{ messages | map(attribute='role') | unique | join('+') }}{{ messages | selectattr('role', "
        "'equalto', 'user') | list | length }}{% for m in messages %}{{ show(m, end=eos_token) }}{% endfor %}"
        "{{ dict(a=1, **{'b': 2}) | items | list }}{{ 'x' is string and messages is sequence }}"
    ),
    "white space of blocks": Case(
        "  {% if true %}\n  a\n    {% endif %}\n{# note #}\n  {%+ if true %}b{% endif %}\n\n"
        "{{- ' c ' -}}\n d\n"
    ),
    "a system message of its own": Case(
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = "
        "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% endif %}{% for m in "
        "loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('order') }}{% endif %}"
        "{{ bos_token if loop.first }}{{ system if loop.first }}{{ m['content'] }}{% endfor %}"
    ),
    "the prompt for an answer": Case(WORDS + "{% if add_generation_prompt %}[assistant]{% endif %}"),
    "no prompt for an answer": Case(
        WORDS + "{% if add_generation_prompt %}[assistant]{% endif %}", {"add_generation_prompt": False}
    ),
    "variables before tokens": Case("{{ bos_token }}{{ eos_token }}", variables={"bos_token": "[B]"}),
}
CONFIG: dict[str, object] = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}


def render_both(folder: Path, case: Case, name: str = "") -> tuple[str, str]:
    """Return what we render, and what transformers does."""
    tokenizer = Tokenizer(folder)
    template = ChatTemplate(template_sources(folder, tokenizer), tokenizer)
    ours = template.render(
        CHAT,
        ChatOptions(**case.options, variables=case.variables, template_name=name),  # type: ignore[arg-type]
    )
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    arguments = {"add_generation_prompt": True, **case.options, **case.variables}
    if name:
        arguments["chat_template"] = name
    return ours.text, theirs.apply_chat_template(CHAT, tokenize=False, **arguments)


@pytest.mark.parametrize("name", CASES)
def test_what_templates_use_renders_as_transformers_renders_it(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    ours, theirs = render_both(
        write_checkpoint(tmp_path, config=CONFIG | {"chat_template": case.source}), case
    )
    assert ours == theirs
    assert ours


NAMED = [{"name": name, "template": f"{name}: {WORDS}"} for name in ("default", "tool_use", "rag")]
FILE = {"chat_template.jinja": f"file: {WORDS}"}
MORE = {"additional_chat_templates/rag.jinja": f"more: {WORDS}"}
PLACES: dict[str, tuple[object, dict[str, str], Case, str, str]] = {
    "tokenizer_config.json": (f"config: {WORDS}", {}, Case(""), "", "config"),
    "named there": (NAMED, {}, Case(""), "", "default"),
    "named there, with tools": (NAMED, {}, Case("", {"tools": TOOLS}), "", "tool_use"),
    "named there, asked for": (NAMED, {}, Case("", {"documents": DOCUMENTS}), "rag", "rag"),
    "chat_template.jinja": (None, FILE, Case(""), "", "file"),
    "chat_template.jinja first": (f"config: {WORDS}", FILE, Case(""), "", "file"),
    "chat_template.jinja instead of named ones": (NAMED, FILE, Case("", {"tools": TOOLS}), "", "file"),
    "a file more": (None, FILE | MORE, Case(""), "", "file"),
    "a file more, asked for": (NAMED, FILE | MORE, Case(""), "rag", "more"),
}


@pytest.mark.parametrize("place", PLACES)
def test_templates_are_found_where_transformers_finds_them(tmp_path: Path, place: str) -> None:
    config, files, case, name, begin = PLACES[place]
    folder = write_checkpoint(tmp_path, config=CONFIG | ({"chat_template": config} if config else {}))
    (folder / "additional_chat_templates").mkdir()
    for path, text in files.items():
        (folder / path).write_text(text)
    ours, theirs = render_both(folder, case, name)
    assert ours == theirs
    assert ours.startswith(f"{begin}: ")


def test_a_processors_chat_template_json_is_the_last_to_be_asked(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, config=CONFIG)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    tokenizer = Tokenizer(folder)
    assert template_sources(folder, tokenizer) == {"default": "json"}
    (folder / "chat_template.jinja").write_text("jinja")
    assert template_sources(folder, tokenizer) == {"default": "jinja"}

"""Answers of each family as its models write them, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from splitserve.frontend.text.answers.calls import ParameterTypes
from splitserve.frontend.text.answers.deltas import (
    AnswerDelta,
    CallArguments,
    CallStarted,
    ContentText,
    ReasoningText,
)
from splitserve.frontend.text.answers.formats import (
    PLAIN_JSON,
    REASONING_FORMATS,
    TOOL_FORMATS,
    AnswerFormats,
)
from splitserve.frontend.text.answers.parser import AnswerParser, AnswerRules

REASONING = {each.name: each for each in REASONING_FORMATS}
HARMONY, THINK, BRACKETS = (REASONING[name] for name in ("harmony", "think", "mistral"))
# Of answers that are text.
FORMATS = {each.name: each for each in (*TOOL_FORMATS, PLAIN_JSON) if each.channels is None}
TOOLS: dict[str, ParameterTypes] = {
    "add": {"a": ("integer",), "b": ("integer",)},
    "say": {"text": ("string",), "more": ("string", "null")},
    "now": {},
}


@dataclass
class Answer:
    """What an answer says, all deltas joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def rules_of(name: str, *, in_reasoning: bool = False) -> AnswerRules:
    """The rules of a request with tools to a model of a family that thinks."""
    reasoning = BRACKETS if name == "mistral" else THINK
    return AnswerRules(AnswerFormats(reasoning, FORMATS[name]), TOOLS, in_reasoning)


def joined_answer(deltas: Iterable[AnswerDelta]) -> Answer:
    answer = Answer()
    for delta in deltas:
        match delta:
            case ContentText(text):
                assert text
                answer.content += text
            case ReasoningText(text):
                assert text
                answer.reasoning += text
            case CallStarted(call, name):
                assert call == len(answer.calls)
                answer.calls.append((name, ""))
            case CallArguments(call, text):
                assert text
                assert call == len(answer.calls) - 1
                answer.calls[call] = (answer.calls[call][0], answer.calls[call][1] + text)
    return answer


def parse(rules: AnswerRules, pieces: Sequence[str]) -> Answer:
    parser = AnswerParser(rules)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return joined_answer([*deltas, *parser.finish()])


ADD = ("add", '{"a": 1, "b": 2}')
NOW = ("now", "{}")
_DEEPSEEK_V3 = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n"
    '```json\n{"a": 1, "b": 2}\n```<｜tool▁call▁end｜>\n'
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
_DEEPSEEK_V31 = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1, "b": 2}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
_KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a": 1, "b": 2}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)
_QWEN_CODER = (
    "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n"
    "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
)
_GLM = (
    "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>"
)
_GEMMA = (
    "<start_function_call>call:add{a:1,b:2}<end_function_call>"
    "<start_function_call>call:now{}<end_function_call>"
)
_GEMMA_4 = "<|tool_call>call:add{a: 1, b: 2}<tool_call|><|tool_call>call:now{}<tool_call|>"
_JSON_ADD = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
_JSON_NOW = '{"name": "now", "arguments": {}}'
_LLAMA = '{"name": "add", "parameters": {"a": 1, "b": 2}}; {"name": "now", "parameters": {}}'

# Family, text, what it says.
SAMPLES: list[tuple[str, str, Answer]] = [
    (
        "hermes",
        f"<think>\nI'll <tool\n</think>\n\nSure.\n<tool_call>\n{_JSON_ADD}\n</tool_call>\n<tool_call>\n"
        f"{_JSON_NOW}\n</tool_call>",
        Answer("Sure.", "I'll <tool", [ADD, NOW]),
    ),
    (
        "hermes",
        f"<tool_call>\n{_JSON_ADD}\n{_JSON_NOW}\n</tool_call>\n Done. ",
        Answer("Done. ", "", [ADD, NOW]),
    ),
    (
        "hermes",
        '<tool_call>{"name": "say", "arguments": {"text": "a</tool_call>\\"} "}}</tool_call>',
        Answer(calls=[("say", '{"text": "a</tool_call>\\"} "}')]),
    ),
    ("llama3_json", _LLAMA, Answer(calls=[ADD, NOW])),
    ("llama3_json", f"<|python_tag|>{_LLAMA}", Answer(calls=[ADD, NOW])),
    (
        "llama3_json",
        '{"type": "function", "name": "now", "parameters": null}',
        Answer(calls=[NOW]),
    ),
    ("mistral", f"Well:[TOOL_CALLS][{_JSON_ADD}, {_JSON_NOW}]", Answer("Well:", "", [ADD, NOW])),
    (
        "mistral",
        '[THINK]Hm.[/THINK]Ok[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}',
        Answer("Ok", "Hm.", [ADD, NOW]),
    ),
    ("mistral", '[TOOL_CALLS]add{"a": 1, "b": 2}[TOOL_CALLS]now{}', Answer(calls=[ADD, NOW])),
    ("deepseek_v3", f"<think>\nHm.\n</think>\n\nOk.{_DEEPSEEK_V3}", Answer("Ok.", "Hm.", [ADD, NOW])),
    ("functiongemma", f"One moment.{_GEMMA}", Answer("One moment.", "", [ADD, NOW])),
    (
        "functiongemma",
        '<start_function_call>call:say{text:<escape>a, {b}: "c"\n<escape>,more:<escape>3<escape>,'
        "to:[{name:<escape>Ann<escape>,age:3},<escape>x<escape>],<escape>k<escape>:{}}<end_function_call>",
        Answer(
            calls=[
                (
                    "say",
                    '{"text": "a, {b}: \\"c\\"\\n", "more": "3", '
                    '"to": [{"name": "Ann", "age": 3}, "x"], "k": {}}',
                )
            ]
        ),
    ),
    (
        "functiongemma",
        "<start_function_call>call:say{text:plain, more:null, loud:true, n:-1.5, odd:a b}",
        Answer(
            calls=[("say", '{"text": "plain", "more": null, "loud": true, "n": -1.5, "odd": "a b"}')],
        ),
    ),
    ("gemma4", _GEMMA_4, Answer(calls=[ADD, NOW])),
    (
        "gemma4",
        '<|tool_call>call:say{text:<|"|>a<|"b<|"|>}<tool_call|> Done.',
        Answer("Done.", "", [("say", '{"text": "a<|\\"b"}')]),
    ),
    ("deepseek_v31", _DEEPSEEK_V31, Answer(calls=[ADD, NOW])),
    ("kimi_k2", f"One moment.{_KIMI}", Answer("One moment.", "", [ADD, NOW])),
    ("qwen3_coder", f"I add.\n{_QWEN_CODER}", Answer("I add.", "", [ADD, NOW])),
    (
        "qwen3_coder",
        '<function=say>\n<parameter=text>\nif a < b:\n    "x"\n\n</parameter>\n<parameter=more>\nnull\n'
        "</parameter>\n<parameter=other>\nTrue\n</parameter>\n</function>",
        Answer(calls=[("say", '{"text": "if a < b:\\n    \\"x\\"\\n", "more": null, "other": true}')]),
    ),
    ("glm45", f"<think>Hm.</think>\n{_GLM}", Answer("", "Hm.", [ADD, NOW])),
    ("granite", f"<|tool_call|>[{_JSON_ADD}, {_JSON_NOW}]", Answer(calls=[ADD, NOW])),
    ("phi4_mini_json", f"<|tool_call|>[{_JSON_ADD}]<|/tool_call|>", Answer(calls=[ADD])),
    ("phi4_mini_json", f"functools[{_JSON_ADD}, {_JSON_NOW}]", Answer(calls=[ADD, NOW])),
    ("pythonic", "[add(a=1, b=2), now()]", Answer(calls=[ADD, NOW])),
    (
        "pythonic",
        "<|python_start|>[say(text='it\\'s ]', more=null)]<|python_end|>",
        Answer(calls=[("say", '{"text": "it\'s ]", "more": null}')]),
    ),
    ("pythonic", '[say(text="\\d+")]', Answer(calls=[("say", '{"text": "\\\\d+"}')])),
    ("json", f" [{_JSON_ADD}, {_JSON_NOW}]", Answer(calls=[ADD, NOW])),
]

# The same for what is no call, is broken or is cut off: nothing of it is lost.
BROKEN: list[tuple[str, str, Answer]] = [
    (name, text, Answer(text))
    for name, text in [
        ("hermes", "The tag <tool_call> begins a call, </tool_call> ends it."),
        ("hermes", '<tool_call>\n{"name": "add", "argu'),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "a b", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", "  Spaces stay.  "),
        ("hermes", "An answer that ends with <tool_"),
        ("llama3_json", '{"name": "Ann", "parameters": {}}'),
        ("llama3_json", '{"name": "add", "age": 3}'),
        ("llama3_json", '{"colour": "red", "name": "add"}'),
        ("llama3_json", "<|python_tag|>brave_search.call(query='x')"),
        ("llama3_json", f"Use {_JSON_ADD}."),
        ("mistral", "[TOOL_CALLS] is a token."),
        ("mistral", "[TOOL_CALLS][]"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\nno JSON"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions."),
        ("qwen3_coder", "<tool_call>\n<function=add"),
        ("glm45", "<tool_call>What is this?\n</tool_call>"),
        ("pythonic", "[1] is a footnote."),
        ("pythonic", "[add(1, 2)]"),
        ("pythonic", "[add(a=f())]"),
        ("pythonic", "[add(a=1"),
        ("pythonic", '[say(text="\\ud800")]'),
        ("pythonic", "[say(text=__import__('os'))]"),
        ("json", '{"name": "Ann"}'),
    ]
] + [
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1, "b', Answer(calls=[("add", '{"a": 1, "b')])),
    ("hermes", f"<tool_call>{_JSON_ADD}\n</tool_", Answer(calls=[ADD])),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": {"b": 1}}</tool_call>Done.',
        Answer("Done.", "", [("add", '{"a": {"b": 1}}')]),
    ),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": [1}}</tool_call>',
        Answer("}", "", [("add", '{"a": [1')]),
    ),
    (
        "hermes",
        f"<tool_call>no</tool_call><tool_call>{_JSON_ADD}</tool_call>",
        Answer("<tool_call>no</tool_call>", "", [ADD]),
    ),
    ("hermes", '<tool_call>{"name": "add"}</tool_call>', Answer(calls=[("add", "{}")])),
    (
        "hermes",
        '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "add"}</tool_call>',
        Answer(calls=[("add", '{"a": 1}')]),
    ),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}", "id": 3}</tool_call>',
        Answer(calls=[("add", '{"a": 1}')]),
    ),
    ("hermes", "<think>Cut off in th", Answer("", "Cut off in th")),
    ("hermes", "<think>\n\n</think>\n\nHi", Answer("Hi")),
    ("hermes", "Hi <think>there</think>", Answer("Hi <think>there</think>")),
    (
        "qwen3_coder",
        "<tool_call>\n<function=say>\n<parameter=text>\nOnce",
        Answer(calls=[("say", '{"text": "Once')]),
    ),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1', Answer(calls=[("add", '{"a": 1')])),
]

"""Grammars of outputs with calls: what each format writes fits, what a schema forbids does not."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator

from splitserve.frontend.text.answers.calls import ParameterTypes
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.answers.parser import AnswerRules
from splitserve.frontend.text.call_grammar.demand import CallableTool, CallDemand
from splitserve.frontend.text.grammar.build import GrammarBuilder
from splitserve.frontend.text.grammar.checker import special_to_llguidance
from splitserve.frontend.text.grammar.context import Reasoning
from splitserve.frontend.text.grammar.refusal import RefusalError
from tests.frontend.text.answers.samples import BRACKETS, FORMATS, SAMPLES, THINK, Answer, parse
from tests.frontend.text.call_grammar.grammar_walks import EOS, GrammarTokenizer


def schema(required: Sequence[str] = (), **properties: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
PARAMETERS: dict[str, dict[str, Any]] = {
    "add": schema(("a", "b"), a=INTEGER, b=INTEGER),
    "say": schema(
        ("text",),
        text=STRING,
        more={"type": ["string", "null"]},
        how={"type": "string", "enum": ["aloud", "silently"]},
        loud={"type": "boolean"},
        to={"type": "array", "items": schema(("name",), name=STRING, age=INTEGER), "maxItems": 2},
    ),
    "now": schema(),
}
TYPES: dict[str, ParameterTypes] = {
    "add": {"a": ("integer",), "b": ("integer",)},
    "say": {
        "text": ("string",),
        "more": ("string", "null"),
        "how": ("string",),
        "loud": ("boolean",),
        "to": ("array",),
    },
    "now": {},
}
TOOLS = [CallableTool(name, parameters, strict=True) for name, parameters in PARAMETERS.items()]
EACH = pytest.mark.parametrize("name", FORMATS)
# Whose calls begin with a tag.
TAGGED = pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if not each.bare])
# As texts, as special tokens, and as added tokens that tokenizer.json does not call special.
KINDS = pytest.mark.parametrize("kind", ["text", "special", "plain"])
# Not what the grammars have: a call of another style, a tag that was forgotten, parameters without a schema.
UNLIKE = ("[TOOL_CALLS]add{", "<start_function_call>call:say{", "<function=say>", '{"type"', '[say(text="\\d')


class Case(NamedTuple):
    tokenizer: GrammarTokenizer
    rules: AnswerRules

    def required(self, tools: Sequence[CallableTool] = TOOLS, *, several: bool = True) -> str:
        return self._built(tools, several, required=True)

    def possible(self, tools: Sequence[CallableTool] = TOOLS, *, several: bool = True) -> str:
        return self._built(tools, several)

    def or_answer(self, kind: str, value: object, tools: Sequence[CallableTool] = TOOLS) -> str:
        return self._built(tools, True, kind, value)

    def _built(
        self,
        tools: Sequence[CallableTool],
        several: bool,
        kind: str = "",
        value: object = None,
        *,
        required: bool = False,
    ) -> str:
        reasoning, form = self.rules.formats
        assert form is not None
        demand = CallDemand(form.name, tuple(tools), required=required, several=several)
        within = self.rules.in_reasoning
        before = Reasoning(reasoning.begin, reasoning.end, within) if reasoning is not None else None
        builder = GrammarBuilder(special_to_llguidance(self.tokenizer.tokenizer), None)
        return builder.build(kind, value, before, demand)


@cache
def tokenizer_of(kind: str, tags: tuple[str, ...]) -> GrammarTokenizer:
    with TemporaryDirectory() as directory:
        special, plain = (tags, ()) if kind == "special" else ((), tags)
        return GrammarTokenizer(Path(directory), special, () if kind == "text" else plain)


def case(name: str, kind: str = "special", *, reasons: bool = False, in_reasoning: bool = False) -> Case:
    reasoning = BRACKETS if name == "mistral" else THINK
    formats = AnswerFormats(reasoning if reasons else None, FORMATS[name])
    rules = AnswerRules(formats, TYPES, in_reasoning)
    tags = FORMATS[name].tags | set(reasoning.tags)
    tokens = sorted(tag for tag in tags if tag[0] in "<[" and tag[-1] in ">]" and tag.strip("<>[]"))
    return Case(tokenizer_of(kind, tuple(tokens)), rules)


def samples(name: str) -> list[str]:
    """What a family writes when it only calls, but for the styles that the grammar leaves out."""
    found = [text for family, text, answer in SAMPLES if family == name and is_only_calls(answer)]
    return [
        text
        for text in found
        if not text.startswith(UNLIKE) and "}}\n{" not in text and "</tool_call>\\" not in text
    ]


def is_only_calls(answer: Answer) -> bool:
    return bool(answer.calls) and not answer.content and not answer.reasoning


def written(name: str, call: str, arguments: dict[str, Any]) -> str:
    """One call as a family writes it."""
    data = json.dumps(arguments, ensure_ascii=False)
    tagged = [(key, each if isinstance(each, str) else json.dumps(each)) for key, each in arguments.items()]
    match name:
        case "qwen3_coder":
            inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in tagged)
            return f"<tool_call>\n<function={call}>\n{inner}</function>\n</tool_call>"
        case "glm45":
            inner = "".join(
                f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in tagged
            )
            return f"<tool_call>{call}\n{inner}</tool_call>"
        case "pythonic":
            values = {
                key: json.dumps(each) if isinstance(each, list | dict) else repr(each)
                for key, each in arguments.items()
            }
            return f"[{call}({', '.join(f'{key}={value}' for key, value in values.items())})]"
        case "deepseek_v3":
            inner = (
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call}\n```json\n{data}\n```<｜tool▁call▁end｜>"
            )
            return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"
        case "deepseek_v31":
            inner = f"<｜tool▁call▁begin｜>{call}<｜tool▁sep｜>{data}<｜tool▁call▁end｜>"
            return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"
        case "kimi_k2":
            inner = (
                f"<|tool_call_begin|>functions.{call}:0<|tool_call_argument_begin|>{data}<|tool_call_end|>"
            )
            return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"
        case "functiongemma":
            return f"<start_function_call>call:{call}{quoted(arguments, '<escape>')}<end_function_call>"
        case "gemma4":
            marked = quoted(arguments, '<|"|>')
            return f"<|tool_call>call:{call}{marked}<tool_call|>"
    one = f'{{"name": "{call}", "arguments": {data}}}'
    around = {
        "hermes": f"<tool_call>\n{one}\n</tool_call>",
        "mistral": f"[TOOL_CALLS]{call}[ARGS]{data}",
        "granite": f"<|tool_call|>[{one}]",
        "phi4_mini_json": f"<|tool_call|>[{one}]<|/tool_call|>",
    }
    return around.get(name, one)


def quoted(value: Any, tag: str) -> str:
    """A value as Gemma writes it."""
    match value:
        case dict():
            return "{" + ",".join(f"{key}:{quoted(each, tag)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(quoted(each, tag) for each in value) + "]"
        case str():
            return f"{tag}{value}{tag}"
        case _:
            return json.dumps(value)


def tokens_of(answer: Answer) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in answer.calls]


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("add", {"a": 1, "b": -20}),
    ("say", {"text": "Bärn, {x} it's\n<b>", "how": "aloud", "loud": True}),
    ("say", {"text": "a", "more": "null", "to": [{"name": "Ann", "age": 3}, {"name": "]"}]}),
    ("now", {}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("add", {"a": 1}),
    ("add", {"a": 1, "b": "two"}),
    ("add", {"a": 1, "b": 2.5}),
    ("add", {"a": 1, "b": 2, "c": 3}),
    ("sub", {"a": 1, "b": 2}),
    ("say", {}),
    ("say", {"text": "a", "how": "sadly"}),
    ("say", {"text": "a", "loud": "yes"}),
    ("say", {"text": "a", "to": [{"age": 3}]}),
    ("now", {"a": 1}),
]


@EACH
@KINDS
def test_what_a_family_writes_fits(name: str, kind: str) -> None:
    given = case(name, kind)
    grammar = given.required()
    for text in samples(name):
        if kind == "text" or "[ARGS]" in text or name != "mistral" or "[{" in text:
            assert given.tokenizer.accepts(grammar, text), text
    for call, arguments in GOOD:
        text = written(name, call, arguments)
        assert given.tokenizer.accepts(grammar, text), text
        assert is_only_calls(parse(given.rules, [text]))


@EACH
@KINDS
@pytest.mark.parametrize(("call", "arguments"), BAD, ids=str)
def test_what_a_schema_forbids_does_not(name: str, kind: str, call: str, arguments: dict[str, Any]) -> None:
    given = case(name, kind)
    text = written(name, call, arguments)
    assert not given.tokenizer.accepts(given.required(), text)
    if not FORMATS[name].bare:
        assert not given.tokenizer.accepts(given.possible(), f"Well. {text}")


@EACH
@KINDS
def test_what_is_no_call_does_not_fit_where_calls_are_required(name: str, kind: str) -> None:
    given = case(name, kind)
    good = written(name, *GOOD[0])
    for text in ("", "Hello", f"Hello {good}", f"{good} Hello", good[:-1]):
        # Some formats need no tag behind the last call.
        if text != good[:-1] or name not in ("phi4_mini_json",):
            assert not given.tokenizer.accepts(given.required(), text), text


@EACH
@KINDS
@pytest.mark.parametrize("several", [True, False])
def test_outputs_at_random_are_calls_with_valid_arguments(name: str, kind: str, several: bool) -> None:
    given = case(name, kind)
    grammar = given.required(several=several)
    num_ended = 0
    for seed in range(8):
        text = given.tokenizer.walk(grammar, random.Random(seed))
        if text is None:
            continue
        num_ended += 1
        answer = parse(given.rules, [text])
        assert is_only_calls(answer), text
        assert several or len(answer.calls) == 1, text
        for call, arguments in tokens_of(answer):
            Draft202012Validator(PARAMETERS[call]).validate(arguments)
    assert num_ended >= 4


@TAGGED
@KINDS
def test_texts_at_random_have_only_calls_with_valid_arguments(name: str, kind: str) -> None:
    given = case(name, kind)
    grammar, good = given.possible(), written(name, *GOOD[0])
    for seed in range(6):
        text = given.tokenizer.walk(grammar, random.Random(seed), f"Hi {FORMATS[name].begin[0]}")
        if text is not None:
            calls = tokens_of(parse(given.rules, [text]))
            assert calls, text
            for call, arguments in calls:
                Draft202012Validator(PARAMETERS[call]).validate(arguments)
    assert given.tokenizer.accepts(grammar, f"Well.\n{good}\nDone. <|im_start|>")


@TAGGED
@KINDS
@pytest.mark.parametrize("where", ["no reasoning", "before", "within"])
def test_before_a_call_everything_is_allowed(name: str, kind: str, where: str) -> None:
    given = case(name, kind, reasons=where != "no reasoning", in_reasoning=where == "within")
    tokenizer = given.tokenizer
    matcher = tokenizer.matcher(given.possible())
    special = set(range(tokenizer.tokenizer.added_tokens["<|im_start|>"], tokenizer.tokenizer.vocab_size))
    # What begins no character of UTF-8 is no text.
    letters = set(tokenizer.encode("".join(map(chr, range(128)))))
    for token in tokenizer.encode('Hi {"a": [1]} <tool\n\n<|im_start|> <b> x'):
        assert not (special | letters) - set(tokenizer.allowed(matcher))
        assert matcher.is_accepting()
        assert matcher.consume_token(token)
    assert tokenizer.tokenizer.added_tokens[EOS] in tokenizer.allowed(matcher)


@TAGGED
@KINDS
def test_there_is_one_call_at_most_if_only_one_is_allowed(name: str, kind: str) -> None:
    given = case(name, kind)
    good = written(name, *GOOD[0])
    assert given.tokenizer.accepts(given.possible(several=False), f"Well. {good}")
    assert given.tokenizer.accepts(given.possible(several=False), "Well.")
    for grammar in (given.possible(several=False), given.required(several=False)):
        assert not given.tokenizer.accepts(grammar, f"{good}\n{good}")


@EACH
@KINDS
def test_reasoning_comes_before_required_calls(name: str, kind: str) -> None:
    thinks = case(name, kind, reasons=True)
    begin, end = (BRACKETS if name == "mistral" else THINK).tags
    good = written(name, *GOOD[0])
    for text in (good, f"{begin}\nHm, add(1)?\n{end}\n\n{good}"):
        assert thinks.tokenizer.accepts(thinks.required(), text), text
        assert parse(thinks.rules, [text]).calls
    within = case(name, kind, reasons=True, in_reasoning=True)
    assert within.tokenizer.accepts(within.required(), f"Hm.{end}\n{good}")
    assert not within.tokenizer.accepts(within.required(), good)
    assert not within.tokenizer.accepts(within.required(), "Hm.")
    assert not case(name, kind).tokenizer.accepts(case(name, kind).required(), f"{begin}Hm.{end}{good}")


@TAGGED
@KINDS
@pytest.mark.parametrize("in_reasoning", [True, False])
def test_calls_within_reasoning_are_free(name: str, kind: str, in_reasoning: bool) -> None:
    given = case(name, kind, reasons=True, in_reasoning=in_reasoning)
    begin, end = (BRACKETS if name == "mistral" else THINK).tags
    thought = f"{'' if in_reasoning else begin}Perhaps {FORMATS[name].begin[0]} and so on?"
    grammar = given.possible()
    assert given.tokenizer.accepts(grammar, thought)
    assert given.tokenizer.accepts(grammar, f"{thought}{end}\nHi {written(name, *GOOD[0])}")
    assert not given.tokenizer.accepts(grammar, f"{thought}{end}\nHi {written(name, *BAD[0])}")


@EACH
def test_only_the_tools_that_may_be_called_are(name: str) -> None:
    given = case(name)
    grammar = given.required(TOOLS[2:], several=False)
    assert given.tokenizer.accepts(grammar, written(name, "now", {}))
    assert not given.tokenizer.accepts(grammar, written(name, *GOOD[0]))


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "pythonic"])
def test_references_begin_at_the_root_of_the_schema(name: str) -> None:
    parameters = schema(("who",), who={"$ref": "#/$defs/person"}) | {
        "$defs": {"person": schema(("n",), n=INTEGER)}
    }
    given = case(name)
    grammar = given.required([CallableTool("f", parameters, strict=True)])
    assert given.tokenizer.accepts(grammar, written(name, "f", {"who": {"n": 1}}))
    assert not given.tokenizer.accepts(grammar, written(name, "f", {"who": {"n": "x"}}))


@EACH
def test_a_tool_that_is_not_strict_may_have_words_that_are_not_known(name: str) -> None:
    unknown = schema(("a",), a={"type": "integer", "not": {"const": 3}})
    given = case(name)
    assert given.tokenizer.accepts(given.required([CallableTool("f", unknown)]), written(name, "f", {"a": 3}))


@pytest.mark.parametrize(
    ("name", "tool", "path"),
    [
        ("hermes", CallableTool("f", {"type": "array"}, path="tools[0].function.parameters"), "parameters"),
        ("glm45", CallableTool("f", schema(a=STRING | {"pattern": "x"}), strict=True), "tools"),
        ("qwen3_coder", CallableTool("f", {"anyOf": [schema()]}, strict=True), "tools"),
        ("qwen3_coder", CallableTool("f", schema((), **{"a>": STRING})), "tools"),
        ("pythonic", CallableTool("f", schema((), **{"a-b": STRING})), "tools"),
        ("pythonic", CallableTool("f-g", schema(), path="tools[0].function.parameters"), "name"),
    ],
)
def test_what_a_format_cannot_write_is_refused(name: str, tool: CallableTool, path: str) -> None:
    with pytest.raises(RefusalError) as caught:
        case(name).required([tool])
    assert caught.value.field.endswith(path)


ANSWER = schema(("name",), name=STRING)


@EACH
@KINDS
def test_an_output_is_calls_or_an_answer_of_its_form(name: str, kind: str) -> None:
    given = case(name, kind)
    grammar = given.or_answer("json", ANSWER)
    for text in (written(name, *GOOD[0]), '{"name":"Ann"}'):
        assert given.tokenizer.accepts(grammar, text), text
    for text in (
        written(name, *BAD[0]),
        '{"name":3}',
        "Hello",
        f'{written(name, *GOOD[0])} {{"name":"Ann"}}',
    ):
        assert not given.tokenizer.accepts(grammar, text), text


@EACH
def test_reasoning_comes_before_both(name: str) -> None:
    given = case(name, reasons=True, in_reasoning=True)
    grammar = given.or_answer("json", ANSWER)
    end = given.rules.formats.reasoning.end if given.rules.formats.reasoning else ""
    for text in (written(name, *GOOD[0]), '{"name":"Ann"}'):
        assert given.tokenizer.accepts(grammar, f"Hm.{end}\n\n{text}"), text
        assert not given.tokenizer.accepts(grammar, text), text


ANY: dict[str, Any] = {}


@pytest.mark.parametrize("name", ["functiongemma", "gemma4"])
@pytest.mark.parametrize(
    ("given", "good", "bad"),
    [
        (ANY, [{"k": [1, "x", None, {"z": {}}]}, "x", True], []),
        ({"type": "object"}, [{}, {"k": "v"}], ["x", [1]]),
        ({"type": "object", "properties": {"k": INTEGER}}, [{}, {"k": 1}], [{"k": "v"}]),
        ({"type": "array"}, [[], ["v", 2.5]], ["v"]),
        ({"type": "array", "items": STRING, "maxItems": 0}, [[]], [["v"]]),
        ({"type": "array", "items": STRING, "maxItems": 1}, [[], ["v"]], [["v", "w"], [1]]),
        ({"type": "array", "items": STRING, "minItems": 1, "maxItems": 1}, [["v"]], [[], ["v", "w"]]),
        ({"type": "array", "items": STRING, "minItems": 2, "maxItems": 3}, [["v", "w"]], [["v"], ["v"] * 4]),
        ({"$ref": "#/$defs/x"}, ["v", 1], []),
    ],
    ids=str,
)
def test_values_between_tags_are_followed_as_far_as_their_schemas_can_be(
    name: str, given: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    asked = case(name)
    tool = CallableTool("f", {**schema(("a",), a=given), "$defs": {"x": STRING}})
    grammar = asked.required([tool])
    for value in good:
        assert asked.tokenizer.accepts(grammar, written(name, "f", {"a": value})), value
    for value in bad:
        assert not asked.tokenizer.accepts(grammar, written(name, "f", {"a": value})), value


def test_a_strict_schema_that_would_be_served_wrong_is_refused_with_its_place() -> None:
    never = schema(("a",), a={"type": "number", "exclusiveMinimum": 1, "maximum": 1.5})
    tool = CallableTool("f", never, strict=True, path="tools[0].function.parameters")
    with pytest.raises(RefusalError) as caught:
        case("hermes").required([tool])
    assert (caught.value.field, caught.value.path) == (tool.path, "properties.a")
    with pytest.raises(RefusalError) as caught:
        case("glm45").required([tool])
    assert (caught.value.field, caught.value.path) == (tool.path, "properties.a")

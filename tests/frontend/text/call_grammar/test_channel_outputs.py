"""Grammars of messages on channels: a call fits its tool's schema, all else is as free as it may be."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from splitserve.frontend.text.answers.channel_format import HARMONY
from splitserve.frontend.text.answers.formats import REASONING_FORMATS, AnswerFormats, tool_format
from splitserve.frontend.text.answers.parser import AnswerRules
from splitserve.frontend.text.call_grammar.demand import CallableTool, CallDemand
from splitserve.frontend.text.grammar.bounded_thoughts import Budget
from splitserve.frontend.text.grammar.build import GrammarBuilder
from splitserve.frontend.text.grammar.checker import special_to_llguidance
from splitserve.frontend.text.grammar.refusal import RefusalError
from tests.frontend.text.answers.samples import parse
from tests.frontend.text.call_grammar.grammar_walks import GrammarTokenizer

INTEGER = {"type": "integer"}
ADD = {
    "type": "object",
    "properties": {"a": INTEGER, "b": INTEGER},
    "required": ["a"],
    "additionalProperties": False,
}
NOW: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"add": ADD, "add_all": ADD, "now": NOW}
TOOLS = tuple(CallableTool(name, schema, strict=True) for name, schema in SCHEMAS.items())
FORM = {"type": "object", "properties": {"n": INTEGER}, "required": ["n"], "additionalProperties": False}

NEXT = "<|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>Hm, to=functions.add?<|end|>"
PREAMBLE = "<|channel|>commentary<|message|>I add {.<|end|>"
FINAL = "<|channel|>final<|message|>Four."
ADD_CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1, "b": 2}'
NOW_CALL = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
# As models write them behind what the prompt has begun.
FIRST_CALLS = [
    ADD_CALL,
    NOW_CALL,
    ADD_CALL.replace(" <|constrain|>json", ""),
    ADD_CALL.replace(" <|constrain|>json", "<|constrain|>json"),
    ADD_CALL.replace(" <|constrain|>json", " json"),
    ADD_CALL.replace("commentary", "analysis").replace("<|constrain|>json", "code"),
    ADD_CALL.replace("add", "add_all"),
    ' to=functions.add<|channel|>commentary json<|message|>{"a":1}',
    " to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}",
    "to=functions.now<|channel|>analysis<|message|>{}",
]
# No calls, and texts that hold what begins one.
FREE = [
    "",
    FINAL,
    THOUGHT + NEXT + FINAL,
    THOUGHT + NEXT + THOUGHT + NEXT + PREAMBLE + NEXT + FINAL,
    THOUGHT.replace("<|end|>", "") + NEXT + FINAL + "<|end|>",
    FINAL + ADD_CALL.replace('"a"', '"x"'),
    "<|channel|>final <|constrain|>json<|message|>[",
    "<|channel|>other channel<|message|>x<|im_start|>y",
    f"{NEXT}<|message|>No channel.",
    "Text without a header to=functions.add",
    "<|message|>x<|constrain|>y",
]
# Not among the tools, not of the schema, broken, or cut off.
BAD_CALLS = [
    ADD_CALL.replace('"a"', '"x"'),
    ADD_CALL.replace("1", '"one"'),
    ADD_CALL.replace("add", "sub"),
    ADD_CALL.replace("functions.add", "python"),
    ADD_CALL.replace("functions.add", "add"),
    ADD_CALL[:-1],
    ADD_CALL + "x",
    NOW_CALL.replace("{}", '{"a": 1}'),
    NOW_CALL.replace("{}", ""),
    " to=functions.add<|channel|>commentary json<|message|>{}",
    " to=functions.sub<|channel|>commentary json<|message|>{}",
    " to=functions.now<|channel|>commentary to=functions.add<|message|>{}",
    # Headers that harmony's own parser refuses.
    ADD_CALL.replace(" <|constrain|>", " json <|constrain|>"),
    ADD_CALL.replace("<|constrain|>json", "<|constrain|> json"),
    ADD_CALL.replace("commentary", " commentary"),
]


@cache
def tokenizer() -> GrammarTokenizer:
    # As gpt-oss has it: a call ends an output, and so does the last message.
    with TemporaryDirectory() as directory:
        return GrammarTokenizer(Path(directory), special=HARMONY.tags, ends=HARMONY.last)


def built(
    *,
    required: bool = False,
    several: bool = True,
    begun: str = "",
    form: object = None,
    budget: Budget | None = None,
    tools: tuple[CallableTool, ...] = TOOLS,
) -> str:
    demand = CallDemand("harmony", tools, required=required, several=several, begun=begun)
    builder = GrammarBuilder(special_to_llguidance(tokenizer().tokenizer), None)
    return builder.build("" if form is None else "json", form, None, demand, budget)


def accepts(grammar: str, text: str) -> bool:
    return tokenizer().accepts(grammar, text)


def rules(begun: str = "") -> AnswerRules:
    reasoning = next(each for each in REASONING_FORMATS if each.channels is not None)
    formats = AnswerFormats(reasoning, tool_format("harmony"))
    tools = {name: dict.fromkeys(schema["properties"], ("integer",)) for name, schema in SCHEMAS.items()}
    return AnswerRules(formats, tools, begun == "analysis", begun == "final")


def check_calls(text: str, begun: str = "") -> int:
    """Check the calls of an answer, and return how many it has."""
    calls = parse(rules(begun), [text]).calls
    for name, arguments in calls:
        Draft202012Validator(SCHEMAS[name]).validate(json.loads(arguments))
    return len(calls)


@pytest.mark.parametrize("text", FIRST_CALLS)
@pytest.mark.parametrize("before", ["", THOUGHT + NEXT, THOUGHT + NEXT + THOUGHT + NEXT])
@pytest.mark.parametrize("several", [True, False])
def test_a_call_fits_in_each_style_of_the_model(text: str, before: str, several: bool) -> None:
    # Where the prompt has written the role, only whitespace is needed; behind it there is some.
    text = before + (f" {text}" if before and text.startswith("to=") else text)
    for required, form in ((True, None), (False, None), (False, FORM)):
        grammar = built(required=required, several=several, form=form)
        assert accepts(grammar, text), text
    assert check_calls(text) == 1


@pytest.mark.parametrize("text", BAD_CALLS)
@pytest.mark.parametrize("before", ["", THOUGHT + NEXT, PREAMBLE + NEXT])
@pytest.mark.parametrize("several", [True, False])
def test_what_a_schema_forbids_does_not(text: str, before: str, several: bool) -> None:
    for required, form in ((True, None), (False, None), (False, FORM)):
        assert not accepts(built(required=required, several=several, form=form), before + text)


@pytest.mark.parametrize("text", FREE)
@pytest.mark.parametrize("several", [True, False])
def test_messages_to_nobody_are_free_unless_a_call_is_required(text: str, several: bool) -> None:
    assert accepts(built(several=several), text)
    assert not accepts(built(required=True, several=several), text)
    assert not parse(rules(), [text]).calls


@pytest.mark.parametrize("first", ["", THOUGHT + NEXT, PREAMBLE + NEXT, FINAL + "<|end|>" + NEXT])
def test_there_are_several_calls_or_one(first: str) -> None:
    text = first + ADD_CALL + "<|end|>" + NEXT + NOW_CALL
    assert accepts(built(), text)
    assert check_calls(text) == 2
    assert not accepts(built(several=False), text)
    is_demand = "analysis" in first or not first
    assert accepts(built(required=True), text) == is_demand
    assert not accepts(built(required=True, several=False), text)
    assert accepts(built(several=False), first + ADD_CALL + "<|end|>")


def test_the_message_of_a_call_has_an_end_before_the_next() -> None:
    # Harmony's own parser would take what follows for arguments.
    for grammar in (built(), built(required=True)):
        assert not accepts(grammar, ADD_CALL + NEXT + NOW_CALL)


def test_behind_the_only_call_no_other_message_follows() -> None:
    assert not accepts(built(several=False), ADD_CALL + "<|end|>" + NEXT + FINAL)
    assert accepts(built(), ADD_CALL + "<|end|>" + NEXT + FINAL)


@pytest.mark.parametrize("call", [ADD_CALL, " to=functions.now<|channel|>commentary<|message|>{}"])
def test_a_call_ends_with_a_token_that_ends_the_output(call: str) -> None:
    ends = tokenizer().ends
    for grammar in (built(), built(required=True), built(several=False), built(required=True, several=False)):
        matcher = tokenizer().matcher(grammar)
        assert matcher.consume_tokens(tokenizer().encode(call[:-1]))
        assert not ends & set(tokenizer().allowed(matcher))
        assert matcher.consume_tokens(tokenizer().encode(call[-1]))
        assert ends <= set(tokenizer().allowed(matcher))
        assert matcher.consume_token(tokenizer().tokenizer.added_tokens["<|call|>"])
        assert matcher.is_stopped()


def test_an_output_that_needs_a_call_does_not_end_within_its_reasoning() -> None:
    for form, required in ((None, True), (FORM, False)):
        matcher = tokenizer().matcher(built(required=required, form=form))
        for token in tokenizer().encode(THOUGHT + NEXT):
            assert not tokenizer().ends & set(tokenizer().allowed(matcher))
            assert matcher.consume_token(token)


@pytest.mark.parametrize("text", ["", NEXT, THOUGHT, THOUGHT + NEXT, PREAMBLE + NEXT + ADD_CALL, FINAL])
def test_a_required_call_has_to_come(text: str) -> None:
    assert not accepts(built(required=True), text)


@pytest.mark.parametrize("before", ["", THOUGHT + NEXT])
@pytest.mark.parametrize("kind", ["", " <|constrain|>json", " json"])
def test_an_answer_on_the_last_channel_has_its_form(before: str, kind: str) -> None:
    grammar = built(form=FORM)
    answer = f"<|channel|>final{kind}<|message|>"
    assert accepts(grammar, before + answer + '{"n":1}')
    for text in (answer + '{"n":"x"}', answer + "Four.", answer, PREAMBLE):
        assert not accepts(grammar, before + text), text


def test_the_prompt_may_have_begun_reasoning() -> None:
    for text, fits in ((f"Hm.<|end|>{NEXT}{ADD_CALL}", True), ("Hm.", False), (ADD_CALL, False)):
        assert accepts(built(required=True, begun="analysis"), text) == fits
        assert accepts(built(begun="analysis"), text)
    assert check_calls(f"Hm.<|end|>{NEXT}{ADD_CALL}", "analysis") == 1
    assert not accepts(built(begun="analysis"), f"Hm.<|end|>{NEXT}{BAD_CALLS[0]}")


def test_the_prompt_may_have_begun_the_answer() -> None:
    call = f"<|end|>{NEXT}{ADD_CALL}"
    assert accepts(built(begun="final"), f"Four.{call}")
    assert accepts(built(required=True, begun="final"), call)
    assert not accepts(built(required=True, begun="final"), "Four.")
    assert accepts(built(begun="final", form=FORM), '{"n":1}')
    assert accepts(built(begun="final", form=FORM), call)
    assert not accepts(built(begun="final", form=FORM), "Four.")
    assert not accepts(built(begun="final"), f"Four.<|end|>{NEXT}{BAD_CALLS[0]}")


@pytest.mark.parametrize("begun", ["", "analysis"])
def test_a_budget_bounds_the_only_message_of_reasoning(begun: str) -> None:
    ids = tokenizer().tokenizer.added_tokens
    budget = Budget(3, (), ids["<|end|>"], "", tuple(tokenizer().ends))
    head = "" if begun else "<|channel|>analysis<|message|>"
    for grammar in (built(required=True, begun=begun, budget=budget), built(begun=begun, budget=budget)):
        assert accepts(grammar, f"{head}123<|end|>{NEXT}{ADD_CALL}")
        assert not accepts(grammar, f"{head}1234<|end|>{NEXT}{ADD_CALL}")
        assert not accepts(grammar, f"{head}123<|end|>{NEXT}{THOUGHT}{NEXT}{ADD_CALL}")
        assert not accepts(grammar, f"{head}123")
    assert accepts(built(begun=begun, budget=budget), f"{head}1<|end|>{NEXT}{PREAMBLE}{NEXT}{FINAL}")


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("begun", ["", "analysis", "final"])
def test_outputs_at_random_are_calls_with_valid_arguments(several: bool, begun: str) -> None:
    grammar, num_ended = built(required=True, several=several, begun=begun), 0
    for seed in range(8):
        text = tokenizer().walk(grammar, random.Random(seed))
        if text is None:
            continue
        num_ended += 1
        num_calls = check_calls(text, begun)
        assert 1 <= num_calls <= (128 if several else 1), text
        assert not parse(rules(begun), [text]).content, text
    assert num_ended >= 4


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("begin", ["", f"{PREAMBLE}{NEXT}", f"{PREAMBLE}{NEXT}{ADD_CALL[:30]}", " to=f"])
def test_messages_at_random_have_only_calls_with_valid_arguments(several: bool, begin: str) -> None:
    for seed in range(12):
        text = tokenizer().walk(built(several=several), random.Random(seed), begin)
        if text is not None:
            assert check_calls(text) <= (128 if several else 1), text


def test_only_the_tools_that_may_be_called_are() -> None:
    grammar = built(required=True, tools=TOOLS[2:])
    assert accepts(grammar, NOW_CALL)
    assert not accepts(grammar, ADD_CALL)


def test_each_schema_is_in_the_grammar_once() -> None:
    names = [each["name"] for each in json.loads(built())["grammars"]]
    assert names == ["answer", "schema_0", "schema_1", "schema_2"]


def test_tags_that_are_no_tokens_are_refused() -> None:
    demand = CallDemand("harmony", TOOLS, required=True)
    with pytest.raises(RefusalError) as caught:
        GrammarBuilder({"<|channel|>": 3, "<|message|>": 4}, None).build("", None, None, demand)
    assert caught.value.field == "tools"

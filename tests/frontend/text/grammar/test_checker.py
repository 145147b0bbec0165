"""Grammars are made in a process with limits, each once; losing the process loses nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.engine_core.errors import EngineUnavailableError, InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.structured_outputs import StructuredOutputs
from splitserve.frontend.text.answers.formats import REASONING_FORMATS
from splitserve.frontend.text.call_grammar.demand import CallableTool, CallDemand
from splitserve.frontend.text.grammar.checker import GrammarChecker, Verdicts
from splitserve.frontend.text.grammar.context import NO_CONTEXT, GrammarContext, Reasoning, reasoning_of
from splitserve.frontend.text.grammar.grammar_process import CheckLimits, GrammarProcess
from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.model_assets import ModelAssets
from splitserve.frontend.text.tokenizer import Tokenizer

MakeThinking = Callable[[Sequence[str], bool], tuple[ModelAssets, tokenizers.Tokenizer, LLTokenizer]]
ROOT = Path(__file__).parents[4]
HARMONY = next(each for each in REASONING_FORMATS if each.name == "harmony")
# Nothing waits for this long unless the test fails.
PATIENT = CheckLimits(check_s=60.0)
# Takes some tenths of a second, and some MiB.
SLOW: dict[str, Any] = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(3000)}}


@pytest.fixture(scope="module")
def assets() -> ModelAssets:
    tokenizer = Tokenizer(ROOT / "engine_core" / "demo_model")
    return ModelAssets(tokenizer, None, SamplingDefaults(), (2,), 1000, tokenizer.vocab_size)


@pytest.fixture
def thinking(assets: ModelAssets, tmp_path: Path) -> MakeThinking:
    """Make a model whose tokenizer has tags of reasoning: assets, tokenizer, and that of its worker."""

    def make(tags: Sequence[str], special: bool) -> tuple[ModelAssets, tokenizers.Tokenizer, LLTokenizer]:
        raw = tokenizers.Tokenizer.from_file(str(ROOT / "engine_core" / "demo_model" / "tokenizer.json"))
        raw.add_tokens([tokenizers.AddedToken(tag, special=special, normalized=False) for tag in tags])
        raw.save(str(tmp_path / "tokenizer.json"))
        tokenizer = Tokenizer(tmp_path)
        own = replace(assets, tokenizer=tokenizer, vocab_size=tokenizer.vocab_size)
        theirs = LLTokenizer(str(tmp_path / "tokenizer.json"), n_vocab=tokenizer.vocab_size, eos_token=[2])
        return own, raw, theirs

    return make


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker(PATIENT)
    yield made
    made.close()


async def grammar_of(
    checker: GrammarChecker, assets: ModelAssets, context: GrammarContext = NO_CONTEXT, **fields: Any
) -> str:
    params = SamplingParams(structured_outputs=StructuredOutputs(**fields))
    resolved = await checker.resolve(params, context, assets)
    assert resolved.structured_outputs is None
    assert resolved.grammar is not None
    return resolved.grammar


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    real, seen = GrammarProcess.make, list[bytes]()

    def make(self: GrammarProcess, query: bytes, vocabulary: bytes) -> str:
        seen.append(query)
        return real(self, query, vocabulary)

    monkeypatch.setattr(GrammarProcess, "make", make)
    return seen


async def test_a_request_without_a_grammar_starts_nothing(
    checker: GrammarChecker, assets: ModelAssets
) -> None:
    params = SamplingParams()
    assert await checker.resolve(params, NO_CONTEXT, assets) is params
    assert checker.pid == 0


async def test_a_grammar_of_the_requests_own_is_checked(checker: GrammarChecker, assets: ModelAssets) -> None:
    params = SamplingParams(grammar='start: "a"')
    assert await checker.resolve(params, NO_CONTEXT, assets) == params
    with pytest.raises(InvalidRequestError, match=r"^grammar: .*Expected token") as caught:
        await checker.resolve(SamplingParams(grammar="start: ("), NO_CONTEXT, assets)
    assert caught.value.param == "grammar"


async def test_special_tokens_of_the_model_are_known(checker: GrammarChecker, assets: ModelAssets) -> None:
    await checker.resolve(SamplingParams(grammar="start: <|im_start|>"), NO_CONTEXT, assets)
    with pytest.raises(InvalidRequestError, match="unknown special token"):
        await checker.resolve(SamplingParams(grammar="start: <|im_begin|>"), NO_CONTEXT, assets)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("tags", [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
async def test_reasoning_is_read_from_the_tokens_of_a_real_tokenizer(
    checker: GrammarChecker, thinking: MakeThinking, tags: tuple[str, str], special: bool
) -> None:
    own, raw, theirs = thinking(tags, special)
    context = GrammarContext("", Reasoning(*tags, is_open=False))
    grammar = await grammar_of(checker, own, context, choice=("yes", "no"))
    begin, end = tags
    expected = {
        "no": True,
        f"{begin}a < b{end}\n\nno": True,
        f"{begin}no": False,
        f"{begin}{end}maybe": False,
    }
    found = {}
    for text in expected:
        matcher = LLMatcher(theirs, grammar, log_level=0)
        ids = raw.encode(text, add_special_tokens=False).ids
        found[text] = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
    assert found == expected


def demand(parameters: dict[str, Any], *, strict: bool = False, **fields: Any) -> CallDemand:
    tools = (CallableTool("f", parameters, strict, "tools[0].function.parameters"),)
    return CallDemand("hermes", tools, **fields)


async def test_calls_become_a_grammar(
    checker: GrammarChecker, assets: ModelAssets, calls: list[bytes]
) -> None:
    context = GrammarContext("tools", None, demand({"type": "object"}, required=True))
    first = await checker.resolve(SamplingParams(), context, assets)
    assert first.grammar is not None
    assert await checker.resolve(SamplingParams(), context, assets) == first
    assert len(calls) == 1
    both = SamplingParams(structured_outputs=StructuredOutputs(regex="a+"))
    resolved = await checker.resolve(both, context, assets)
    assert resolved.structured_outputs is None
    assert resolved.grammar not in (None, first.grammar)


@pytest.mark.parametrize(
    ("parameters", "strict", "words"),
    [
        ({"type": "array"}, False, "the schema of arguments is that of an object, not of 'array'"),
        ({"properties": {"a": {"pattern": "("}}, "required": ["a"]}, False, "regex parse error"),
        ({"properties": {"a": {"uniqueItems": True}}}, True, "uniqueItems"),
        ({"properties": {"a": {"minimum": 2**60}}}, True, "minimum must be within"),
    ],
)
async def test_a_tool_that_cannot_be_followed_is_named_or_left_free(
    checker: GrammarChecker, assets: ModelAssets, parameters: dict[str, Any], strict: bool, words: str
) -> None:
    asked = demand(parameters, strict=strict)
    with pytest.raises(InvalidRequestError, match=re.escape(words)) as caught:
        await checker.resolve(SamplingParams(), GrammarContext("tools", None, asked), assets)
    assert caught.value.param == "tools[0].function.parameters"
    at = f"{caught.value.param}.properties.a:" if "properties" in parameters else f"{caught.value.param}:"
    assert str(caught.value).startswith(at)
    free = GrammarContext("tools", None, msgspec.structs.replace(asked, is_optional=True))
    params = SamplingParams()
    assert await checker.resolve(params, free, assets) is params


async def test_a_grammar_of_calls_that_is_too_long_is_refused(
    checker: GrammarChecker, assets: ModelAssets
) -> None:
    many = demand({"properties": {f"a{i}": {"type": "string"} for i in range(10000)}}, required=True)
    with pytest.raises(InvalidRequestError, match=r"^tools: it must have at most \d+ characters") as caught:
        await checker.resolve(SamplingParams(), GrammarContext("tools", None, many), assets)
    assert caught.value.param == "tools"


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("tags", [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
@pytest.mark.parametrize("is_open", [True, False])
async def test_a_budget_counts_the_tokens_of_a_real_tokenizer(
    checker: GrammarChecker, thinking: MakeThinking, tags: tuple[str, str], special: bool, is_open: bool
) -> None:
    own, raw, theirs = thinking(tags, special)
    context = GrammarContext("", Reasoning(*tags, is_open=is_open))
    thoughts = raw.encode("Schön, 1 < 2 😀", add_special_tokens=False).ids
    before = [] if is_open else raw.encode(tags[0], add_special_tokens=False).ids
    begin, end = (own.tokenizer.added_tokens[tag] for tag in tags)
    for num_tokens in range(len(thoughts) + 2):
        params = SamplingParams(thinking_token_budget=num_tokens)
        resolved = await checker.resolve(params, context, own)
        assert resolved == SamplingParams(grammar=resolved.grammar)
        assert resolved.grammar is not None
        matcher = LLMatcher(theirs, resolved.grammar, log_level=0)
        expected = min(num_tokens, len(thoughts)) + len(before)
        assert matcher.try_consume_tokens([*before, *thoughts]) == expected
        if num_tokens < len(thoughts):
            assert matcher.try_consume_tokens([begin]) == 0
        assert matcher.try_consume_tokens([end, *thoughts, begin]) == len(thoughts) + 2


async def test_a_budget_beside_a_schema_counts_too(checker: GrammarChecker, thinking: MakeThinking) -> None:
    own, raw, theirs = thinking(("<think>", "</think>"), False)
    context = GrammarContext("", Reasoning("<think>", "</think>", is_open=True))
    params = SamplingParams(thinking_token_budget=2, structured_outputs=StructuredOutputs(choice=("no",)))
    resolved = await checker.resolve(params, context, own)
    assert resolved == SamplingParams(grammar=resolved.grammar)
    assert resolved.grammar is not None
    matcher = LLMatcher(theirs, resolved.grammar, log_level=0)
    ids = raw.encode("a b c</think>no", add_special_tokens=False).ids
    assert matcher.try_consume_tokens(ids) == 2
    assert matcher.try_consume_tokens(ids[3:]) == len(ids) - 3
    assert matcher.is_accepting()


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("num_tokens", [2, 3])
async def test_a_budget_beside_calls_counts_too(
    checker: GrammarChecker, thinking: MakeThinking, required: bool, num_tokens: int
) -> None:
    own, raw, theirs = thinking(("<think>", "</think>"), False)
    reasoning = Reasoning("<think>", "</think>", is_open=False)
    context = GrammarContext("tools", reasoning, demand({"type": "object"}, strict=True, required=required))
    resolved = await checker.resolve(SamplingParams(thinking_token_budget=num_tokens), context, own)
    assert resolved == SamplingParams(grammar=resolved.grammar)
    assert resolved.grammar is not None
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    expected = {
        f"<think>a b c</think>{call}": num_tokens == 3,
        f"<think>a b</think>\n\n{call}": True,
        call: True,
        "<think>a b</think>Hi.": not required,
        "Hi.": not required,
        "<think>a b c d": False,
    }
    found = {}
    for text in expected:
        matcher = LLMatcher(theirs, resolved.grammar, log_level=0)
        ids = raw.encode(text, add_special_tokens=False).ids
        found[text] = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
    assert found == expected


async def test_a_budget_stays_where_calls_are_left_free(
    checker: GrammarChecker, thinking: MakeThinking
) -> None:
    own, _, _ = thinking(("<think>", "</think>"), False)
    reasoning, params = (
        Reasoning("<think>", "</think>", is_open=True),
        SamplingParams(thinking_token_budget=2),
    )
    wrong = demand({"type": "array"}, is_optional=True)
    resolved = await checker.resolve(params, GrammarContext("tools", reasoning, wrong), own)
    assert resolved == await checker.resolve(params, GrammarContext("", reasoning), own)
    assert resolved.grammar is not None


async def test_a_budget_is_kept_where_the_prompt_has_closed_the_reasoning(
    checker: GrammarChecker, assets: ModelAssets, calls: list[bytes]
) -> None:
    params = SamplingParams(thinking_token_budget=2)
    assert await checker.resolve(params, NO_CONTEXT, assets) == SamplingParams()
    assert not calls


@pytest.mark.parametrize("reasoning", [None, Reasoning("<think>", "</think>", is_open=False)], ids=str)
async def test_a_grammar_that_no_text_fits_is_refused_behind_reasoning_too(
    checker: GrammarChecker, assets: ModelAssets, reasoning: Reasoning | None
) -> None:
    context = GrammarContext("", reasoning)
    with pytest.raises(InvalidRequestError, match="no text fits it"):
        await checker.resolve(SamplingParams(grammar="start: start"), context, assets)


async def test_a_budget_that_cannot_be_held_is_refused(
    checker: GrammarChecker, assets: ModelAssets, thinking: MakeThinking
) -> None:
    context = GrammarContext("", Reasoning("<thought>", "</thought>", is_open=True))
    params = SamplingParams(thinking_token_budget=2)
    with pytest.raises(InvalidRequestError, match="no tokens of their own") as caught:
        await checker.resolve(params, context, assets)
    assert (caught.value.param, caught.value.code) == ("thinking_token_budget", "unsupported_parameter")
    own, _, _ = thinking(("<thought>", "</thought>"), True)
    with pytest.raises(InvalidRequestError, match="excludes a grammar") as caught:
        await checker.resolve(SamplingParams(thinking_token_budget=2, grammar='start: "a"'), context, own)
    assert (caught.value.param, caught.value.code) == ("thinking_token_budget", "unsupported_parameter")


THOUGHT = "<|channel|>analysis<|message|>a b c<|end|>"
ANSWER = "<|start|>assistant<|channel|>final<|message|>"
HEADER = "<|channel|>final<|message|>"


async def test_an_answer_on_a_channel_is_held_to_its_format(
    checker: GrammarChecker, thinking: MakeThinking
) -> None:
    own, raw, theirs = thinking(HARMONY.tags, True)
    expected = {
        f"{HEADER}no": True,
        f"{THOUGHT}{ANSWER}no": True,
        "no": False,
        f"{THOUGHT}{HEADER}no": False,
        f"{THOUGHT}{ANSWER}maybe": False,
    }
    for budget in (None, 3, 2):
        params = SamplingParams(
            thinking_token_budget=budget, structured_outputs=StructuredOutputs(choice=("yes", "no"))
        )
        context = GrammarContext("", reasoning_of(HARMONY, is_open=False))
        resolved = await checker.resolve(params, context, own)
        assert resolved.grammar is not None
        found = {}
        for text in expected:
            matcher = LLMatcher(theirs, resolved.grammar, log_level=0)
            ids = raw.encode(text, add_special_tokens=False).ids
            found[text] = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert found == expected | ({f"{THOUGHT}{ANSWER}no": False} if budget == 2 else {})


async def test_a_budget_ends_a_message_of_reasoning(checker: GrammarChecker, thinking: MakeThinking) -> None:
    own, raw, theirs = thinking(HARMONY.tags, True)
    context = GrammarContext("", reasoning_of(HARMONY, is_open=False))
    resolved = await checker.resolve(SamplingParams(thinking_token_budget=3), context, own)
    assert resolved.grammar is not None
    call = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    analysis = "<|start|>assistant<|channel|>analysis<|message|>"
    cases = {
        f"{THOUGHT}{ANSWER}a b c d e <|end|>": True,
        f"{THOUGHT}{call}": True,
        f"{HEADER}a b c d e": True,
        # It has had its budget.
        f"{THOUGHT}{analysis}a": False,
        f"{THOUGHT.replace(' c', '')}{analysis}a b c<|end|>": True,
        f"{THOUGHT.replace(' c', '')}{analysis}a b c d<|end|>": False,
        f"{THOUGHT.replace(' c', ' c d')}": False,
    }
    found = {}
    for text in cases:
        matcher = LLMatcher(theirs, resolved.grammar, log_level=0)
        ids = raw.encode(text, add_special_tokens=False).ids
        found[text] = matcher.try_consume_tokens(ids) == len(ids)
    assert found == cases


async def test_each_is_made_once(checker: GrammarChecker, assets: ModelAssets, calls: list[bytes]) -> None:
    first = await grammar_of(checker, assets, json={"type": "null"})
    assert await grammar_of(checker, assets, json={"type": "null"}) == first
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="Unimplemented"):
            await grammar_of(checker, assets, json={"contains": {}})
    assert len(calls) == 2
    reasoning = Reasoning("<think>", "</think>", is_open=False)
    assert await grammar_of(checker, assets, GrammarContext("", reasoning), json={"type": "null"}) != first


async def test_errors_name_the_field_and_the_place(checker: GrammarChecker, assets: ModelAssets) -> None:
    schema = {"properties": {"x": {"uniqueItems": True}}}
    with pytest.raises(
        InvalidRequestError, match=r"^structured_outputs\.json\.properties\.x: Unimpl"
    ) as caught:
        await grammar_of(checker, assets, json=schema)
    assert caught.value.param == "structured_outputs.json"
    with pytest.raises(InvalidRequestError, match=r"^a\.b\.properties\.x: Unimpl") as caught:
        await grammar_of(checker, assets, GrammarContext("a.b"), json=schema)
    assert caught.value.param == "a.b"


async def test_a_model_without_eos_has_none(checker: GrammarChecker, assets: ModelAssets) -> None:
    with pytest.raises(InvalidRequestError, match="no EOS token") as caught:
        await grammar_of(checker, replace(assets, eos_token_ids=()), regex="a")
    assert (caught.value.param, caught.value.code) == ("structured_outputs.regex", "unsupported_parameter")


def endless() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    schema["properties"] = schema
    return schema


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (endless(), "nested too deeply"),
        ('{"not":' * 5000 + "{}" + "}" * 5000, "nested too deeply"),
        ({"a": object()}, "must be JSON values"),
        ("\ud800", "must be JSON values"),
        ("x" * 2**20, "must have at most"),
    ],
    ids=["endless", "deep", "object", "surrogate", "long"],
)
async def test_what_is_no_json_is_refused(
    checker: GrammarChecker, assets: ModelAssets, value: Any, words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        await grammar_of(checker, assets, json=value)
    assert await grammar_of(checker, assets, regex="a")


async def test_one_that_takes_too_long_is_refused_and_the_next_served(
    checker: GrammarChecker, assets: ModelAssets, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = GrammarProcess.make

    def impatient(self: GrammarProcess, query: bytes, vocabulary: bytes) -> str:
        self._limits = PATIENT._replace(check_s=0.01 if b"p2999" in query else PATIENT.check_s)
        return real(self, query, vocabulary)

    monkeypatch.setattr(GrammarProcess, "make", impatient)
    with pytest.raises(InvalidRequestError, match=r"checking it took longer than 0\.01 s"):
        await grammar_of(checker, assets, json=SLOW)
    assert await grammar_of(checker, assets, regex="a")


def address_space(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (size,) = [int(line.split()[1]) for line in lines if line.startswith("VmSize:")]
    return size * 1024


async def test_one_that_takes_too_much_memory_is_refused_and_the_next_served(
    checker: GrammarChecker, assets: ModelAssets
) -> None:
    assert await grammar_of(checker, assets, regex="a")
    limits = PATIENT._replace(memory_bytes=address_space(checker.pid) + 3 * 2**20)
    small = GrammarChecker(limits)
    try:
        with pytest.raises(InvalidRequestError, match=r"MiB of memory|crashed the process"):
            await grammar_of(small, assets, json=SLOW)
        assert await grammar_of(small, assets, regex="a")
    finally:
        small.close()


async def test_a_process_lost_once_is_replaced_unseen(
    checker: GrammarChecker, assets: ModelAssets, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = GrammarProcess.make, list[int]()

    def lose_first(self: GrammarProcess, query: bytes, vocabulary: bytes) -> str:
        if not lost:
            lost.append(self.pid)
            os.kill(self.pid, signal.SIGKILL)
        return real(self, query, vocabulary)

    monkeypatch.setattr(GrammarProcess, "make", lose_first)
    assert await grammar_of(checker, assets, regex="a")
    assert checker.pid not in (0, *lost)


async def test_one_that_its_process_dies_of_twice_is_refused(
    checker: GrammarChecker, assets: ModelAssets, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = GrammarProcess.make

    def lose(self: GrammarProcess, query: bytes, vocabulary: bytes) -> str:
        os.kill(self.pid, signal.SIGKILL)
        return real(self, query, vocabulary)

    with monkeypatch.context() as patch:
        patch.setattr(GrammarProcess, "make", lose)
        with pytest.raises(InvalidRequestError, match="crashed the process that checks it twice") as caught:
            await grammar_of(checker, assets, regex="a")
    assert caught.value.param == "structured_outputs.regex"
    assert await grammar_of(checker, assets, regex="a")


async def test_a_closed_checker_makes_none(checker: GrammarChecker, assets: ModelAssets) -> None:
    checker.close()
    checker.close()
    with pytest.raises(EngineUnavailableError):
        await grammar_of(checker, assets, regex="a")


def test_verdicts_are_bounded_by_number_and_bytes() -> None:
    verdicts = Verdicts(max_entries=2, max_bytes=4000)
    for key in (b"a", b"b"):
        verdicts.add(key, key.decode())
    assert verdicts.get(b"a") == "a"
    verdicts.add(b"c", "c")
    assert (verdicts.get(b"a"), verdicts.get(b"b"), verdicts.get(b"c")) == ("a", None, "c")
    verdicts.add(b"d", RefusalError("x" * 800))
    assert len(verdicts) == 1
    verdicts.add(b"e", "x" * 5000)
    assert (len(verdicts), verdicts.num_bytes) == (0, 0)


def test_neither_the_frontend_nor_the_process_loads_the_others_packages() -> None:
    heavy = "{'zmq', 'numpy', 'tokenizers', 'fastapi', 'splitserve.engine_core'}"
    for module, unwanted in (("grammar_child", heavy), ("checker", "{'llguidance'}")):
        code = (
            f"import sys, splitserve.frontend.text.grammar.{module}\n"
            f"found = {unwanted} & set(sys.modules)\n"
            "sys.exit(f'loaded {found}' if found else 0)\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert run.returncode == 0, run.stderr

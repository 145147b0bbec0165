"""The grammar of a whole output: reasoning if the model thinks, then calls, or text with calls."""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.frontend.text.answers.formats import ReasoningFormat, ToolFormat
from splitserve.frontend.text.answers.parser import AnswerRules
from splitserve.frontend.text.call_grammar.arguments import CallableTool
from splitserve.frontend.text.call_grammar.calls import CallGrammar
from splitserve.frontend.text.call_grammar.lark import Lark, one_of, tokens_apart
from splitserve.frontend.text.tokenizer import Tokenizer


def required_calls(
    rules: AnswerRules, tokenizer: Tokenizer, callable_tools: Sequence[CallableTool], *, several: bool
) -> str:
    """Return the grammar of an output that is calls, behind reasoning if the model writes any.

    Args:
        rules: by which the output will be parsed; with a format of tools.
        tokenizer: of the model.
        callable_tools: at least one.
        several: whether there may be more than one call.

    Raises:
        InvalidRequestError: the format cannot write a tool, or not follow its schema.
    """
    reasoning, tools = rules.formats
    assert tools is not None
    lark = Lark(tokens_apart(tokenizer))
    thought = ""
    if reasoning is not None:
        begin = lark.text(reasoning.begin)
        text = f"{lark.text_before('thought', reasoning.end)} {lark.space()}"
        # The first tag stands in the prompt, or is the model's to write.
        thought = text if rules.in_reasoning else f"({lark.space()} {begin} {text})?"
    lark.rule("start", f"{thought} {CallGrammar(lark, tools, callable_tools, several=several).calls()}")
    return str(lark)


def possible_calls(
    rules: AnswerRules, tokenizer: Tokenizer, callable_tools: Sequence[CallableTool], *, several: bool
) -> str | None:
    """Return the grammar of an output that is any text in which only calls of the tools begin.

    Args:
        rules: by which the output will be parsed; with a format of tools.
        tokenizer: of the model.
        callable_tools: at least one.
        several: whether there may be more than one call.

    Returns:
        None if nothing in the format tells where calls begin.

    Raises:
        InvalidRequestError: the format cannot write a tool, or not follow its schema.
    """
    reasoning, tools = rules.formats
    assert tools is not None
    if tools.bare:
        return None
    lark = Lark(tokens_apart(tokenizer))
    answer = _text_with_calls(
        lark, tools, CallGrammar(lark, tools, callable_tools, several=several), several=several
    )
    lark.rule("start", _behind_reasoning(lark, reasoning, rules, answer) if reasoning is not None else answer)
    return str(lark)


def _text_with_calls(lark: Lark, tools: ToolFormat, calls: CallGrammar, *, several: bool) -> str:
    text, other = lark.any_text(), lark.other_tokens(tools.openers)
    passed = [lark.rule("passed", f"{text} {other}")] if other else []
    turns = [
        lark.rule(f"turn_{number}", f"{lark.text_before(f'opener_{number}', opener)} {calls.behind(opener)}")
        for number, opener in enumerate(tools.openers)
    ]
    if several:
        return lark.rule("answer", f"{one_of([*passed, *turns])}* {text}")
    before = f"{passed[0]}*" if passed else ""
    return lark.rule("answer", f"{before} {one_of([*turns, text])}")


def _behind_reasoning(lark: Lark, reasoning: ReasoningFormat, rules: AnswerRules, answer: str) -> str:
    """Return what matches reasoning, in which no call begins, and the answer; there may be only the first."""
    text, other = lark.any_text(), lark.other_tokens((reasoning.end,))
    passed = f"{lark.rule('thought_passed', f'{text} {other}')}*" if other else ""
    thought = lark.rule(
        "thought", f"{passed} ({lark.text_before('thought_end', reasoning.end)} {answer} | {text})"
    )
    if rules.in_reasoning:
        return thought
    begin = lark.text(reasoning.begin)
    if reasoning.begin not in lark.tokens:
        # Lazy, or any text would go on over the tag.
        begin = lark.rule("thought_begin", begin, "[lazy]")
    return f"{lark.space()} {begin} {thought} | {answer}"

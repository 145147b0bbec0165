"""The grammar of an output that calls tools, or may: as one Lark text."""

from __future__ import annotations

from collections.abc import Collection

from splitserve.frontend.text.answers.formats import tool_format
from splitserve.frontend.text.call_grammar.calls import CallGrammar
from splitserve.frontend.text.call_grammar.demand import CallDemand
from splitserve.frontend.text.call_grammar.lark import Lark, one_of
from splitserve.frontend.text.grammar.context import Reasoning


def calls_or_answer(lark: Lark, demand: CallDemand, answer: str) -> str:
    """Return the grammar of an output that is calls, or an answer of a certain form if no call is required.

    Args:
        lark: without rules.
        demand: of the request.
        answer: expression for the answer, "" for none.

    Raises:
        RefusalError: the format cannot write a tool, or not follow its schema.
    """
    calls = CallGrammar(lark, demand).calls()
    lark.rule("start", calls if demand.required or not answer else f"{calls} | {answer}")
    return str(lark)


def text_with_calls(
    lark: Lark, demand: CallDemand, reasoning: Reasoning | None, excluded: Collection[str] = ()
) -> str:
    """Return the grammar of an output that is any text in which only calls of the tools begin.

    Args:
        lark: without rules.
        demand: of the request; in a format with tags that tell where calls begin.
        reasoning: in which no call begins; the output may end within.
        excluded: tokens that the text may not have.

    Raises:
        RefusalError: the format cannot write a tool, or not follow its schema.
    """
    answer = _answer(lark, demand, excluded)
    lark.rule("start", answer if reasoning is None else _behind_reasoning(lark, reasoning, answer))
    return str(lark)


def _answer(lark: Lark, demand: CallDemand, excluded: Collection[str]) -> str:
    calls, openers = CallGrammar(lark, demand), tool_format(demand.tool_format).openers
    text, other = lark.any_text(), lark.other_tokens((*openers, *excluded))
    passed = [lark.rule("passed", f"{text} {other}")] if other else []
    turns = [
        lark.rule(f"turn_{number}", f"{lark.text_before(f'opener_{number}', opener)} {calls.behind(opener)}")
        for number, opener in enumerate(openers)
    ]
    if demand.several:
        return lark.rule("answer", f"{one_of([*passed, *turns])}* {text}")
    before = f"{passed[0]}*" if passed else ""
    return lark.rule("answer", f"{before} {one_of([*turns, text])}")


def _behind_reasoning(lark: Lark, reasoning: Reasoning, answer: str) -> str:
    text, other = lark.any_text(), lark.other_tokens((reasoning.end,))
    passed = f"{lark.rule('thought_passed', f'{text} {other}')}*" if other else ""
    thought = lark.rule(
        "thought", f"{passed} ({lark.text_before('thought_end', reasoning.end)} {answer} | {text})"
    )
    if reasoning.is_open:
        return thought
    begin = lark.text(reasoning.begin)
    if not lark.is_token(reasoning.begin):
        # Lazy, or any text would go on over the tag.
        begin = lark.rule("thought_begin", begin, "[lazy]")
    return f"{lark.space()} {begin} {thought} | {answer}"

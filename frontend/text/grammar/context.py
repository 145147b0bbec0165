"""Where a grammar comes from and what stands before the answer that it is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from splitserve.frontend.text.answers.formats import ReasoningFormat
from splitserve.frontend.text.answers.prompt_end import NUM_TOKENS, Beginning, beginning_of
from splitserve.frontend.text.call_grammar.demand import CallDemand

if TYPE_CHECKING:
    # Not for the process that makes grammars.
    from splitserve.frontend.text.tokenizer import Tokenizer


class Reasoning(NamedTuple):
    """Reasoning that precedes the answer, free of the grammar.

    Attributes:
        begin: its first tag; the model may leave the reasoning out.
        end: its last tag, and what else stands before the answer.
        is_open: the prompt has begun it, and the output has to end it.
        otherwise: what stands before an answer without it.
    """

    begin: str
    end: str
    is_open: bool
    otherwise: str = ""


def reasoning_of(tags: ReasoningFormat, *, is_open: bool) -> Reasoning:
    """Return the reasoning that a model may write before its answer."""
    return Reasoning(tags.begin, tags.before_answer, is_open, tags.answer)


def reasoning_before(
    tags: ReasoningFormat | None, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], continued: str
) -> Reasoning | None:
    """Return the reasoning that may precede an answer, None if there is none.

    Args:
        tags: of the model, None if it writes no reasoning.
        tokenizer: of the model.
        prompt_token_ids: what the answer follows.
        continued: text of a message that the answer goes on with, "" if it is a message of its own.
    """
    if tags is None:
        return None
    end = tokenizer.decode(prompt_token_ids[-NUM_TOKENS:], skip_special_tokens=False)
    beginning = beginning_of(tags, end, continued)
    if beginning is Beginning.BEHIND:
        return None
    return reasoning_of(tags, is_open=beginning is Beginning.WITHIN)


class GrammarContext(NamedTuple):
    """What is known of a grammar beside itself.

    Attributes:
        field: of the request, for errors; "" for the one of SamplingParams.
        reasoning: None if the whole output is held to the grammar.
        calls: that the output may have, or must.
    """

    field: str = ""
    reasoning: Reasoning | None = None
    calls: CallDemand | None = None


NO_CONTEXT: Final = GrammarContext()

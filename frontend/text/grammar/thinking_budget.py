"""What a budget of reasoning means for one model: which tokens begin its reasoning, and which ends it?"""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.text.answers.formats import ReasoningFormat
from splitserve.frontend.text.grammar.bounded_thoughts import Budget
from splitserve.frontend.text.grammar.context import Reasoning
from splitserve.frontend.text.tokenizer import Tokenizer

FIELD = "thinking_token_budget"


def budget_of(
    num_tokens: int,
    tags: ReasoningFormat | Reasoning | None,
    tokenizer: Tokenizer,
    eos_token_ids: Sequence[int],
) -> Budget:
    """Return the budget in the words of a grammar.

    Args:
        num_tokens: most tokens of reasoning.
        tags: of the model's reasoning; None if it writes none.
        tokenizer: of the model.
        eos_token_ids: that end its outputs.

    Raises:
        InvalidRequestError: the model writes no reasoning, or its tags are no tokens, which can be forced.
    """
    if tags is None:
        text = f"{FIELD}: this model, as it is served here, writes no reasoning"
        raise InvalidRequestError(text, FIELD, "unsupported_parameter")
    end, begin = _first_token(tokenizer, tags.end), _first_token(tokenizer, tags.begin)
    begin_ids = tokenizer.encode(tags.begin, add_special_tokens=False, parse_special_tokens=True)
    if not end or not begin or begin_ids[0] != tokenizer.added_tokens[begin]:
        text = f"{FIELD}: the reasoning of this model stands between texts that are no tokens of their own"
        raise InvalidRequestError(text, FIELD, "unsupported_parameter")
    end_id = tokenizer.added_tokens[end]
    return Budget(num_tokens, tuple(begin_ids), end_id, tags.end[len(end) :], tuple(eos_token_ids))


def _first_token(tokenizer: Tokenizer, tag: str) -> str:
    """Return the added token that a tag begins with, "" if there is none."""
    return max((text for text in tokenizer.added_tokens if tag.startswith(text)), key=len, default="")

"""Reasoning of at most so many tokens, in a grammar: then its last tag is all that may follow.

Tokens are counted as such, by ranges of ids, which llguidance prefers to texts where both could match. A
budget that is not used up changes nothing, but that the output cannot end within its reasoning.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

# Kind of an answer that may be anything behind its reasoning.
FREE = "free"
_ANY = "<[*]>"


class Budget(NamedTuple):
    """How long reasoning may be.

    Attributes:
        num_tokens: between its tags; 0 or more.
        begin_ids: tokens of its first tag, the first of which begins nothing else.
        end_id: token that ends it.
        end_rest: text behind that token in its last tag.
        eos_ids: tokens that end the output.
    """

    num_tokens: int
    begin_ids: tuple[int, ...]
    end_id: int
    end_rest: str
    eos_ids: tuple[int, ...]


def free_with_budget(budget: Budget, *, is_open: bool) -> str:
    """Return the Lark text of an output that is free but for the length of its reasoning.

    Behind reasoning that was ended for it the model begins none again, if its first tag has several tokens:
    one alone may be meant as text.

    Args:
        budget: of the reasoning.
        is_open: the prompt has begun it.
    """
    first, *others = budget.begin_ids
    thought = _but(budget.end_id, *budget.eos_ids)
    begin = " ".join(map(_only, budget.begin_ids))
    # Tokens that begin no reasoning; or those of its tag, up to one that is another.
    apart = [_but(first, *budget.eos_ids)]
    apart += [
        f"{' '.join(map(_only, budget.begin_ids[:count]))} {_but(other, *budget.eos_ids)}"
        for count, other in enumerate(others, 1)
    ]
    steps = f"({' | '.join([*apart, *([f'{begin} short'] if budget.num_tokens else [])])})*"
    whole = f"{steps} ({begin} long rest)?"
    if is_open:
        whole = f"short {whole} | long rest" if budget.num_tokens else "long rest"
    rules = {
        "start": whole,
        "long": f"{_repeated(thought, budget.num_tokens, budget.num_tokens)} {_only(budget.end_id)}",
        "rest": f"({' | '.join(apart)})*" if others else f"{_ANY}*",
    }
    if budget.num_tokens:
        short = _repeated(thought, 0, budget.num_tokens - 1)
        rules["short"] = f"{short} {_only(budget.end_id)}"
    return "".join(f"{name}: {body}\n" for name, body in rules.items())


def thoughts_with_budget(budget: Budget, special_ids: Collection[int]) -> str:
    """Return the Lark expression of reasoning without special tokens, up to and with the one that ends it."""
    thought = _but(*special_ids, budget.end_id, *budget.eos_ids)
    return f"{_repeated(thought, 0, budget.num_tokens)} {_only(budget.end_id)}"


def _repeated(expression: str, low: int, high: int) -> str:
    return f"{expression}{{{low},{high}}}" if high else ""


def _only(token_id: int) -> str:
    return f"<[{token_id}]>"


def _but(*token_ids: int) -> str:
    return f"<[^{','.join(_ranges(sorted(set(token_ids))))}]>"


def _ranges(token_ids: Sequence[int]) -> list[str]:
    """Return ids in order as llguidance writes ranges: long lists of special tokens are mostly one."""
    found: list[list[int]] = []
    for token_id in token_ids:
        if found and token_id == found[-1][1] + 1:
            found[-1][1] = token_id
        else:
            found.append([token_id, token_id])
    return [str(low) if low == high else f"{low}-{high}" for low, high in found]

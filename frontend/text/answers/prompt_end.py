"""Where in the model's turn does an answer begin: before, within or behind its reasoning?"""

from __future__ import annotations

import enum

from splitserve.frontend.text.answers.formats import ReasoningFormat

# The tokens of a prompt's end that are looked at: a tag and whitespace, even if each letter is a token.
NUM_TOKENS = 32


class Beginning(enum.Enum):
    """Where an answer begins."""

    BEFORE = "before"
    WITHIN = "within"
    BEHIND = "behind"


def beginning_of(reasoning: ReasoningFormat, prompt_end: str, continued: str = "") -> Beginning:
    """Return where an answer begins.

    Templates that make a model think write the first tag; those that keep it from thinking, both.

    Args:
        reasoning: tags of the model.
        prompt_end: text of the prompt's last tokens, special ones included.
        continued: text of a message that the answer goes on with, "" if it is a message of its own.
    """
    if continued.strip():
        is_open = continued.rfind(reasoning.begin) > continued.rfind(reasoning.end)
        return Beginning.WITHIN if is_open else Beginning.BEHIND
    text = prompt_end.rstrip()
    if text.endswith(reasoning.begin):
        return Beginning.WITHIN
    return Beginning.BEHIND if text.endswith(reasoning.answer or reasoning.end) else Beginning.BEFORE

"""Where a grammar comes from and what stands before the answer that it is for."""

from __future__ import annotations

from typing import NamedTuple


class Reasoning(NamedTuple):
    """Reasoning that precedes the answer, free of the grammar.

    Attributes:
        begin: its first tag; the model may leave the reasoning out.
        end: its last tag.
        is_open: the prompt has begun it, and the output has to end it.
    """

    begin: str
    end: str
    is_open: bool


class GrammarContext(NamedTuple):
    """What is known of a grammar beside itself.

    Attributes:
        field: of the request, for errors; "" for the one of SamplingParams.
        reasoning: None if the whole output is held to the grammar.
    """

    field: str = ""
    reasoning: Reasoning | None = None

"""One process that makes and checks grammars, as its parent sees it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from splitserve.engine_core.sequence_sampling import MAX_GRAMMAR_CHARS
from splitserve.frontend.text.call_grammar.demand import CallDemand
from splitserve.frontend.text.grammar.bounded_thoughts import Budget
from splitserve.frontend.text.grammar.context import Reasoning
from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.limited.process import LimitedProcess, ProcessLimits

_CHILD = "splitserve.frontend.text.grammar.grammar_child"
# Of grammar_child.py, which is not imported here: that would bring llguidance into every process.
_GRAMMAR, _OUT_OF_MEMORY = b"=", b"m"
_MAX_UTF8_BYTES = 4


class CheckLimits(NamedTuple):
    """What a grammar may take.

    Attributes:
        check_s: seconds for making and checking it.
        start_s: seconds until the process is ready.
        memory_bytes: address space of the process.
    """

    check_s: float = 5.0
    start_s: float = 60.0
    memory_bytes: int = 512 * 2**20


class Vocabulary(msgspec.Struct, frozen=True):
    """What a grammar may name of a tokenizer.

    Attributes:
        special_tokens: text to id, of all tokens that are no text to llguidance.
        eos_token_id: one of those that end an output.
        vocab_size: token ids are below it.
    """

    special_tokens: dict[str, int]
    eos_token_id: int
    vocab_size: int


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is asked.

    Attributes:
        kind: field of StructuredOutputs, "" for none, "free" for any answer behind reasoning with a budget.
        value: of that field; without one, a grammar that is only checked.
        whitespace_pattern: as there.
        reasoning: that may precede the answer; None for none.
        calls: that the output may have, or must, beside the value.
        budget: of the reasoning.
    """

    kind: str
    value: Any
    whitespace_pattern: str | None = None
    reasoning: Reasoning | None = None
    calls: CallDemand | None = None
    budget: Budget | None = None
    max_chars: int = MAX_GRAMMAR_CHARS


class GrammarProcess:
    """One process; used by the one thread that starts it."""

    def __init__(self, limits: CheckLimits) -> None:
        """Start it.

        Raises:
            ProcessEndedError: it cannot be started, or ends at once.
        """
        self._limits = limits
        process_limits = ProcessLimits(limits.start_s, limits.check_s, limits.memory_bytes)
        self._process = LimitedProcess(_CHILD, process_limits)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def make(self, query: bytes, vocabulary: bytes) -> str:
        """Return the checked grammar of a query.

        Args:
            query: a Query as JSON.
            vocabulary: a Vocabulary as JSON.

        Raises:
            RefusalError: it is wrong, not served, or takes too much memory.
            ProcessTimeoutError, ProcessEndedError: kill() the process.
        """
        body = b"[" + query + b"," + vocabulary + b"]"
        max_bytes = MAX_GRAMMAR_CHARS * _MAX_UTF8_BYTES
        kind, text = self._process.exchange(body, max_bytes, self._limits.check_s)
        if kind == _GRAMMAR:
            return text
        if kind == _OUT_OF_MEMORY:
            limit = self._limits.memory_bytes // 2**20
            raise RefusalError(f"checking it takes more than {limit} MiB of memory")
        raise RefusalError(*msgspec.json.decode(text, type=tuple[str, str, str]))

    def end(self) -> None:
        """Make it end, whatever it is doing; for any thread. kill() is still to be called."""
        self._process.end()

    def kill(self) -> None:
        """End it and release what it holds; safe to call twice."""
        self._process.kill()

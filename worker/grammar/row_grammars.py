"""Which tokens may rows with a grammar draw next? Worked out while the next step's forward pass runs.

    event                       what happens to the row's grammar
    first sampled from          a matcher is made; it takes the tokens that the output has already: after a
                                preemption, or another engine's part of it
    got a token                 a thread tells the matcher, and asks it for the next mask
    sampled from again          that thread is waited for, which has had a forward pass of time
    its matcher fails           the row fails, with what llguidance says

Masks depend on grammar and output alone, so a row's tokens do not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.row_faults import row_fault
from splitserve.worker.batch.sampling_state import Feature, RowGrammar
from splitserve.worker.grammar.compiler import GrammarCompiler, reason_of
from splitserve.worker.ops.columns import Int32

if TYPE_CHECKING:
    from llguidance import LLExecutor

WORD_BITS = 32


class RowGrammars:
    """The grammars of the rows of one batch; called by the worker's thread."""

    def __init__(self, batch: InputBatch, compiler: GrammarCompiler) -> None:
        """Args: batch owns the rows; compiler makes their matchers."""
        self._batch = batch
        self._state = batch.sampling
        self._compiler = compiler
        self._num_words = -(-batch.limits.vocab_size // WORD_BITS)
        self._masks: Int32 = np.zeros((0, self._num_words), np.int32)
        self._thread: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None
        self._ahead: Future[None] | None = None

    def masks(self, rows: Sequence[int]) -> Int32:
        """Return the masks of rows that settle() has looked at, int32 [n, ceil(V / 32)]."""
        return self._masks[list(rows)]

    def settle(self, rows: Sequence[int], faults: dict[int, RowError]) -> None:
        """Have the masks of these rows ready.

        A row whose output is complete may end, whatever min_tokens says: nothing else is left to it.

        Args:
            rows: with a grammar.
            faults: gets the errors of rows whose grammar cannot go on.
        """
        self._wait()
        state = self._state
        new = [row for row in rows if state.grammars[row].matcher is None]
        if new:
            self._start(new, faults)
        for row in rows:
            matcher = state.grammars[row].matcher
            if row in faults or matcher is None:
                continue
            if matcher.is_error():
                faults[row] = RowError(
                    row, "grammar_failed", f"the grammar cannot go on: {reason_of(matcher)}", 400
                )
            elif state.features[row] & Feature.MIN_TOKENS and matcher.is_stopped():
                state.drop(row, Feature.MIN_TOKENS)

    def advance(self, rows: Int32, token_ids: Int32) -> None:
        """Begin to work out the next masks of rows that were given a token; others than those are skipped."""
        state = self._state
        if not state.grammars:
            return
        pairs = [
            (state.grammars[row], row, token_id)
            for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True)
            if row in state.grammars
        ]
        if not pairs:
            return
        self._wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "masks")
        self._ahead = self._thread.submit(self._take_tokens, pairs)

    def _start(self, rows: Sequence[int], faults: dict[int, RowError]) -> None:
        batch, state = self._batch, self._state
        started = []
        for row in rows:
            grammar = state.grammars[row]
            try:
                grammar.matcher = self._compiler.matcher(grammar.text)
            except InvalidRequestError as error:
                faults[row] = RowError(row, "invalid_grammar", str(error), 400)
                continue
            except Exception as error:
                faults[row] = row_fault(row, error)
                continue
            output = batch.tokens[row, batch.num_prompt_tokens[row] : batch.num_tokens[row]]
            if len(output):
                grammar.matcher.consume_tokens(output.tolist())
            started.append((grammar, row))
        self._fill(started)

    def _take_tokens(self, pairs: Sequence[tuple[RowGrammar, int, int]]) -> None:
        for grammar, _, token_id in pairs:
            if grammar.matcher is not None:
                grammar.matcher.consume_token(token_id)
        self._fill([(grammar, row) for grammar, row, _ in pairs])

    def _fill(self, grammars: Sequence[tuple[RowGrammar, int]]) -> None:
        """Compute masks, several at a time where there are cores for it; the GIL is released meanwhile."""
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor()
            self._masks = np.zeros((len(self._state.features), self._num_words), np.int32)
        matchers = [(grammar.matcher, row) for grammar, row in grammars if grammar.matcher is not None]
        if matchers:
            table = self._masks
            row_bytes = table.shape[1] * table.itemsize
            self._executor.unsafe_compute_mask_ptr(matchers, table.ctypes.data, row_bytes, len(table))

    def _wait(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.result()

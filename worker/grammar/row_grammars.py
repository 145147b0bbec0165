"""Which tokens may rows with a grammar draw next? Worked out while the next step's forward pass runs.

    event                       what happens to the row's grammar
    first sampled from          a matcher is made; it takes the tokens that the output has already: after a
                                preemption, or another engine's part of it
    got a token                 it is noted
    a forward pass begins       a thread tells the matcher, and asks it for the next mask; any earlier, the
                                worker's thread would have to wait for that one's share of the GIL
    sampled from again          that thread is waited for, which has had a forward pass of time
    its matcher fails           the row fails, with what llguidance says

Masks depend on grammar and output alone, so a row's tokens do not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.row_faults import row_fault
from splitserve.worker.batch.sampling_state import Feature, RowGrammar
from splitserve.worker.grammar.compiler import GrammarCompiler, reason_of
from splitserve.worker.ops.columns import Int32

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher


class RowGrammars:
    """The grammars of the rows of one batch; called by the worker's thread."""

    def __init__(self, batch: InputBatch, compiler: GrammarCompiler, masks: Int32) -> None:
        """Build it.

        Args:
            batch: owns the rows.
            compiler: makes their matchers.
            masks: int32 [max_num_seqs, ceil(V / 32)]; those of rows with a grammar are written here, from
                work_ahead() to settle() by another thread.
        """
        self._batch = batch
        self._state = batch.sampling
        self._compiler = compiler
        self._masks = masks
        self._thread: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None
        self._due: list[tuple[RowGrammar, int, int]] = []
        self._ahead: Future[None] | None = None

    def settle(self, rows: Int32, faults: dict[int, RowError]) -> None:
        """Have the masks of these rows ready.

        A row whose output is complete may end, whatever min_tokens says: nothing else is left to it.

        Args:
            rows: int32 [n], with a grammar.
            faults: gets the errors of rows whose grammar cannot go on.
        """
        self.work_ahead()
        self._wait()
        state = self._state
        grammars = [(state.grammars[row], row) for row in rows.tolist()]
        new = [(grammar, row) for grammar, row in grammars if grammar.matcher is None]
        if new:
            self._start(new, faults)
        for grammar, row in grammars:
            matcher = grammar.matcher
            if matcher is not None and matcher.is_error():
                faults[row] = RowError(
                    row, "grammar_failed", f"the grammar cannot go on: {reason_of(matcher)}", 400
                )
        for i in state.rows_with(Feature.MIN_TOKENS, rows).tolist():
            grammar, row = grammars[i]
            if row not in faults and grammar.matcher is not None and grammar.matcher.is_stopped():
                state.drop(row, Feature.MIN_TOKENS)

    def took(self, rows: Int32, token_ids: Int32) -> None:
        """Note the tokens that rows were given; rows without a grammar are skipped."""
        grammars = self._state.grammars
        if not grammars:
            return
        self._due += [
            (grammars[row], row, token_id)
            for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True)
            if row in grammars
        ]

    def work_ahead(self) -> None:
        """Begin to work out the next masks of rows that were given a token."""
        # A row that left may be another's by now, whose mask is written elsewhere.
        self._wait()
        if not self._due:
            return
        grammars = self._state.grammars
        due = [
            (grammar.matcher, row, token_id)
            for grammar, row, token_id in self._due
            if grammar.matcher is not None and grammars.get(row) is grammar
        ]
        self._due.clear()
        if not due:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "masks")
        self._ahead = self._thread.submit(self._take_tokens, due)

    def _start(self, new: Sequence[tuple[RowGrammar, int]], faults: dict[int, RowError]) -> None:
        batch = self._batch
        started = []
        for grammar, row in new:
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
            started.append((grammar.matcher, row))
        if started:
            self._fill(started)

    def _take_tokens(self, due: Sequence[tuple[LLMatcher, int, int]]) -> None:
        self._threads().consume_token_par([(matcher, token_id) for matcher, _, token_id in due])
        self._fill([(matcher, row) for matcher, row, _ in due])

    def _fill(self, matchers: Sequence[tuple[LLMatcher, int]]) -> None:
        table = self._masks
        row_bytes = table.shape[1] * table.itemsize
        self._threads().unsafe_compute_mask_ptr([*matchers], table.ctypes.data, row_bytes, len(table))

    def _threads(self) -> LLExecutor:
        """What works on several rows at a time, where there are cores for it, without the GIL."""
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor()
        return self._executor

    def _wait(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.result()

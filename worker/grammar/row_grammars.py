"""Which tokens may rows with a grammar draw next? Worked out while the next step's forward pass runs.

    event                       what happens to the row's grammar
    first sampled from          a matcher is made; it takes the tokens that the output has already: after a
                                preemption, or another engine's part of it
    got tokens                  they are noted
    is drafted for              the matcher is told the noted tokens, and asked about the drafts
    a forward pass begins       a thread tells the matcher the noted tokens, and asks it for the next mask,
                                and for those behind drafts; any earlier, the worker's thread would have to
                                wait for that one's share of the GIL
    sampled from again          that thread is waited for, which has had a forward pass of time; or, where the
                                step before was in flight until now, its work is done here
    its matcher fails           the row fails, with what llguidance says; if it was asked about drafts, which
                                may never be drawn, it is made again first

Masks depend on grammar and output alone, so a row's tokens do not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.row_faults import row_fault
from splitserve.worker.batch.sampling_state import Feature, RowGrammar
from splitserve.worker.grammar.compiler import GrammarCompiler, reason_of
from splitserve.worker.grammar.draft_masks import DraftMasks, Drafts, table_of
from splitserve.worker.ops.columns import Int32

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher


class _Due(NamedTuple):
    """Tokens that a row's matcher has not been told; its mask is old, even if there are none."""

    grammar: RowGrammar
    token_ids: list[int]


class _Work(NamedTuple):
    """What the thread does for one row."""

    row: int
    matcher: LLMatcher
    token_ids: list[int]
    drafts: Drafts | None


class RowGrammars:
    """The grammars of the rows of one batch; called by the worker's thread.

    Attributes:
        draft_masks: those behind drafts.
    """

    def __init__(
        self, batch: InputBatch, compiler: GrammarCompiler, masks: Int32, num_threads: int = 1
    ) -> None:
        """Build it.

        Args:
            batch: owns the rows.
            compiler: makes their matchers.
            masks: int32 [max_num_seqs + MAX_DRAFT_MASKS, ceil(V / 32)]; those of rows with a grammar, and
                behind them those of drafts, are written here, from work_ahead() to settle() by another
                thread.
            num_threads: make the masks of several rows.
        """
        self._batch = batch
        self._state = batch.sampling
        self._compiler = compiler
        self._masks = masks
        self._thread: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None
        self._num_threads = num_threads
        self._due: dict[int, _Due] = {}
        self.draft_masks = DraftMasks(batch, masks)
        # Rows whose matcher was asked about drafts since they were sampled from; at most max_num_seqs.
        self._asked: set[int] = set()
        self._ahead: Future[None] | None = None

    def settle(self, rows: Int32, faults: dict[int, RowError]) -> None:
        """Have the masks of these rows ready.

        A row whose output is complete may end, whatever min_tokens says: nothing else is left to it.

        Args:
            rows: int32 [n], with a grammar; a row with drafts occurs once for each place that it samples.
            faults: gets the errors of rows whose grammar cannot go on.
        """
        self.wait()
        # Not begun ahead: the step before was in flight, and whoever called has nothing else to do.
        work = self._take_due()
        if work:
            self._take_tokens(work)
        state = self._state
        grammars = {row: state.grammars[row] for row in rows.tolist()}
        self._forgive(grammars)
        new = [(grammar, row) for row, grammar in grammars.items() if grammar.matcher is None]
        if new:
            self._start(new, faults)
        for row, grammar in grammars.items():
            matcher = grammar.matcher
            if matcher is not None and matcher.is_error():
                faults[row] = RowError(
                    row, "grammar_failed", f"the grammar cannot go on: {reason_of(matcher)}", 400
                )
        for row in rows[state.rows_with(Feature.MIN_TOKENS, rows)].tolist():
            matcher = grammars[row].matcher
            if row not in faults and matcher is not None and matcher.is_stopped():
                state.drop(row, Feature.MIN_TOKENS)

    def took(self, rows: Int32, token_ids: Int32, lengths: Int32 | None = None) -> None:
        """Note the tokens that rows were given; rows without a grammar are skipped.

        Args:
            rows: int32 [n].
            token_ids: int32, one of each, or one run after the other.
            lengths: int32 [n], of the runs.
        """
        grammars = self._state.grammars
        if not grammars:
            return
        ends = np.arange(1, len(rows) + 1) if lengths is None else lengths.cumsum()
        begin = 0
        for row, end in zip(rows.tolist(), ends.tolist(), strict=True):
            grammar = grammars.get(row)
            if grammar is not None:
                due = self._due.get(row)
                if due is None or due.grammar is not grammar:
                    due = self._due[row] = _Due(grammar, [])
                due.token_ids.extend(token_ids[begin:end].tolist())
            begin = end

    def forced(self, row: int, drafts: list[int]) -> list[int]:
        """Return the tokens that a row's grammar leaves no choice but behind drafts, if it allows these.

        They are what the model's tokenizer makes of the bytes that have to follow; the model may put the same
        bytes in other tokens. Nothing is known of a row that has not been sampled from.
        """
        matcher = self._caught_up(row)
        if matcher is None:
            return []
        count = matcher.try_consume_tokens(drafts) if drafts else 0
        token_ids = matcher.compute_ff_tokens() if count == len(drafts) else []
        if count:
            matcher.rollback(count)
        return token_ids

    def admit(self, rows: Int32, num_drafts: Int32) -> bool:
        """Cut drafts of rows to what their grammars allow; work_ahead() will see to the masks behind them.

        Args:
            rows: int32 [R], of the next step; others than those of the batch are passed over.
            num_drafts: int32 [max_num_seqs], tokens that stand behind the known ones of each row; lowered.
                -1 for a row that has ended.

        Returns:
            Whether num_drafts has something left to say of these rows.
        """
        if not self._state.grammars:
            return True
        rows = rows[(rows >= 0) & (rows < len(num_drafts))]
        self.draft_masks.clear()
        for row in rows[num_drafts[rows] > 0].tolist():
            if row in self._state.grammars:
                num_drafts[row] = self.draft_masks.add(row, self.allowed(row, num_drafts.item(row)))
        return bool(num_drafts[rows].any())

    def allowed(self, row: int, count: int) -> list[int]:
        """Return how far a row's grammar allows the `count` drafts behind its tokens."""
        end = self._batch.num_tokens.item(row)
        drafts: list[int] = self._batch.tokens[row, end : end + count].tolist()
        matcher = self._caught_up(row)
        return [] if matcher is None else drafts[: max(0, matcher.validate_tokens(drafts))]

    def work_ahead(self) -> None:
        """Begin to work out the next masks of rows that were given tokens, and those behind their drafts."""
        # A row that left may be another's by now, whose mask is written elsewhere.
        self.wait()
        work = self._take_due()
        if not work:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "masks")
        self._ahead = self._thread.submit(self._take_tokens, work)

    def _take_due(self) -> list[_Work]:
        """Return the work that has come due; it is done with by whoever asks."""
        if not self._due and not self.draft_masks.next:
            return []
        grammars, drafts = self._state.grammars, self.draft_masks.begin_step()
        for row in drafts:
            self._due.setdefault(row, _Due(grammars[row], []))
        work = [
            _Work(row, due.grammar.matcher, due.token_ids, drafts.get(row))
            for row, due in self._due.items()
            if due.grammar.matcher is not None and grammars.get(row) is due.grammar
        ]
        self._due = {}
        return work

    def _caught_up(self, row: int) -> LLMatcher | None:
        """Return the matcher of a row, told all its tokens; None if it has none yet, or nothing to say."""
        self.wait()
        grammar = self._state.grammars.get(row)
        if grammar is None or grammar.matcher is None:
            return None
        due = self._due.get(row)
        if due is not None and due.grammar is grammar and due.token_ids:
            _tell(grammar.matcher, due.token_ids)
            due.token_ids.clear()
        if grammar.matcher.is_error():
            return None
        self._asked.add(row)
        return grammar.matcher

    def _forgive(self, grammars: dict[int, RowGrammar]) -> None:
        """Let go of matchers that may have failed for their drafts alone, which then count for nothing."""
        for row in self._asked & grammars.keys():
            grammar = grammars[row]
            if grammar.matcher is not None and grammar.matcher.is_error():
                grammar.matcher = None
                self.draft_masks.forbid(row)
        # In a pipeline others were asked for steps to come.
        self._asked -= grammars.keys()

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

    def _take_tokens(self, work: Sequence[_Work]) -> None:
        threads = self._threads()
        single = [(each.matcher, each.token_ids[0]) for each in work if len(each.token_ids) == 1]
        if single:
            threads.consume_token_par(single)
        for each in work:
            if len(each.token_ids) > 1:
                _tell(each.matcher, each.token_ids)
        # Of drafts that are computed though none is allowed nothing is asked.
        drafted = [
            (each.matcher, each.row, each.drafts)
            for each in work
            if each.drafts is not None and each.drafts.token_ids
        ]
        plain = [
            (each.matcher, each.row) for each in work if each.drafts is None or not each.drafts.token_ids
        ]
        if plain:
            self._fill(plain)
        if drafted:
            self.draft_masks.fill(threads, drafted)

    def _fill(self, matchers: Sequence[tuple[LLMatcher, int]]) -> None:
        self._threads().unsafe_compute_mask_ptr([*matchers], *table_of(self._masks))

    def _threads(self) -> LLExecutor:
        """What works on several rows at a time, where there are cores for it, without the GIL."""
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(self._num_threads)
        return self._executor

    def wait(self) -> None:
        """Wait until no other thread writes masks."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.result()


def _tell(matcher: LLMatcher, token_ids: Sequence[int]) -> None:
    # One by one: a matcher that has stopped takes another end of the sequence in this way only.
    for token_id in token_ids:
        matcher.consume_token(token_id)

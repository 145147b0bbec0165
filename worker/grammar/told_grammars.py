"""What do grammars say to drafts that all stages of a pipeline compute? They are cut before they are told.

By the time a step computes them it is too late to drop any: the stages before have computed them already.
"""

from __future__ import annotations

from collections.abc import Container

from splitserve.worker.grammar.row_grammars import RowGrammars
from splitserve.worker.ops.columns import Int32


class ToldGrammars:
    """Asks the grammars of the rows of a pipeline's last stage; called by the worker's thread.

    Args:
        grammars: of the rows.
        has_grammar: says of a row of the batch whether it has one.
    """

    def __init__(self, grammars: RowGrammars, has_grammar: Container[int]) -> None:
        self._grammars = grammars
        self._has_grammar = has_grammar

    def cut(self, rows: Int32, num_drafts: Int32) -> None:
        """Cut drafts of rows as RowGrammars.admit does, for steps to come: no masks are worked out yet.

        Args:
            rows: int32 [R], of the batch.
            num_drafts: int32 [max_num_seqs], tokens that stand behind the known ones of each row; lowered.
        """
        for row in self._drafting(rows, num_drafts):
            num_drafts[row] = len(self._grammars.allowed(row, num_drafts.item(row)))

    def expect(self, rows: Int32, num_drafts: Int32) -> None:
        """Let RowGrammars.work_ahead() see to the masks behind drafts, all of which the step computes.

        Behind one that is not allowed any more nothing can be drawn. The arguments are those of cut().
        """
        grammars = self._grammars
        grammars.draft_masks.clear()
        for row in self._drafting(rows, num_drafts):
            count = num_drafts.item(row)
            allowed = grammars.allowed(row, count)
            grammars.wait()
            grammars.draft_masks.add_all(row, allowed, count)

    def _drafting(self, rows: Int32, num_drafts: Int32) -> list[int]:
        return [row for row in rows[num_drafts[rows] > 0].tolist() if row in self._has_grammar]

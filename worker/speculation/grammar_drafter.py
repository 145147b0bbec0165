"""What does a row's grammar leave no choice but? The keys of a JSON object, for one.

Nothing is put into an output: what is drafted is verified like any draft. A grammar forces bytes, which are
drafted in the tokens that the tokenizer makes of them; a model that spells them otherwise is not held up.
"""

from __future__ import annotations

from collections.abc import Iterable

from splitserve.engine_core.ipc.worker_messages import NewRow
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.grammar.row_grammars import RowGrammars
from splitserve.worker.speculation.draft_sheet import DraftSheet


class GrammarDrafter:
    """A Drafter that knows the rows' grammars; does nothing where there are none."""

    method = "grammar"
    is_at_speed = True

    def __init__(self, grammars: RowGrammars) -> None:
        """Args: grammars of the rows of the batch."""
        self._grammars = grammars

    def enter(self, new: NewRow) -> bool:
        """See Drafter."""
        return new.sampling.grammar is not None

    def leave(self, rows: Iterable[int]) -> None:
        """See Drafter."""

    def draft(self, sheet: DraftSheet) -> None:
        """See Drafter."""
        state = sheet.batch.sampling
        if not state.grammars:
            return
        rows = sheet.allowed_rows()
        for row in rows[state.rows_with(Feature.GRAMMAR, rows)].tolist():
            sheet.append(row, self._grammars.forced(row, sheet.drafts(row)))

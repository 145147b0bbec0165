"""What mostly followed when a row's last tokens occurred before, in its own text or in recent answers?

An answer is kept when its row leaves the batch, and found only by rows of the same namespace, which is that
of the prefix cache: tenant, cache salt and adapter. What a row had generated before it entered was kept when
it left, preempted, the last time.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from splitserve.engine_core.ipc.worker_messages import NewRow
from splitserve.engine_core.settings.speculation import SuffixRules
from splitserve.worker.ops.drafts.suffixes import SuffixLimits, suffix_kernels
from splitserve.worker.speculation.draft_sheet import DraftSheet

# Of all answers: 40 bytes each, in pages that take memory as they fill.
MAX_ANSWER_TOKENS = 2**20
# Of what was generated before a row entered again, so that what follows is found behind it.
_NUM_REPEATED = 16
_NAMESPACE_BYTES = 16


class SuffixDrafter:
    """A Drafter that knows the rows' own prompts and outputs, and recent answers."""

    method = "suffix"
    is_at_speed = True

    def __init__(
        self, sheet: DraftSheet, rules: SuffixRules, max_answer_tokens: int = MAX_ANSWER_TOKENS
    ) -> None:
        """Build a drafter without answers.

        Args:
            sheet: the one that will be drafted to.
            rules: what the settings say.
            max_answer_tokens: of all answers, a power of two.
        """
        limits = SuffixLimits(
            rules.max_depth, rules.max_factor, rules.min_share, max_answer_tokens, rules.max_answers
        )
        # The kernels write to the sheet's memory.
        self._sheet = sheet
        self._kernels = suffix_kernels(sheet.tensors, limits)

    def enter(self, new: NewRow) -> bool:
        """See Drafter."""
        known = len(new.token_ids) // 4
        is_named = len(new.namespace) == _NAMESPACE_BYTES
        first, second = np.frombuffer(new.namespace, "<i8").tolist() if is_named else (0, 0)
        begin = max(new.num_prompt_tokens, known - _NUM_REPEATED)
        self._kernels.enter(new.row, begin, first, second)
        return True

    def leave(self, rows: Iterable[int]) -> None:
        """See Drafter."""
        for row in rows:
            self._kernels.leave(row)

    def draft(self, sheet: DraftSheet) -> None:
        """See Drafter."""
        self._kernels.draft()

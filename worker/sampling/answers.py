"""The number that a decoder's answer, yes or no, gives a prompt."""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.judging import Judge
from splitserve.worker.models.base import Model


class Answers:
    """Compares the logits of two answers; of all tokens' logits, since a prompt costs far more than these."""

    def __init__(self, model: Model, judge: Judge, max_rows: int) -> None:
        """Prepare.

        Args:
            model: has an output head.
            judge: names the answers.
            max_rows: most rows of logits at once.
        """
        self._model = model
        self._yes, self._no = judge.yes, judge.no
        self._max_rows = max_rows

    def __call__(self, states: torch.Tensor) -> torch.Tensor | None:
        """Return logit of yes minus logit of no, float32 [n, 1], for states [n, H] of last tokens, n >= 1.

        All ranks of the last stage call it; None on those that do not sample.
        """
        found = []
        for begin in range(0, len(states), self._max_rows):
            logits = self._model.compute_logits(states[begin : begin + self._max_rows])
            if logits is not None:
                found.append((logits[:, self._yes] - logits[:, self._no])[:, None])
        return torch.cat(found) if found else None

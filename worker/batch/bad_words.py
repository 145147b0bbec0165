"""Bad words of a row: token-id sequences that must not appear in its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Matches every token in `_prefixes`; token ids are never negative.
_ANY = -1
# Stands for positions before the output; equal to no token id and not to _ANY.
_NOTHING = -2


@dataclass(slots=True, frozen=True)
class BadWords:
    """All sequences as one table, so that a step matches the end of the output against all at once.

    Attributes:
        last_ids: int32 [W], the last id of each sequence.
        prefixes: int32 [W, max_prefix], the ids before it, right-aligned and padded with wildcards.
    """

    last_ids: npt.NDArray[np.int32]
    prefixes: npt.NDArray[np.int32]

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> BadWords:
        """Make the table; each sequence has at least one id."""
        prefixes = np.full((len(sequences), max(map(len, sequences)) - 1), _ANY, np.int32)
        for prefix, sequence in zip(prefixes, sequences, strict=True):
            if len(sequence) > 1:
                prefix[1 - len(sequence) :] = sequence[:-1]
        return cls(np.array([sequence[-1] for sequence in sequences], np.int32), prefixes)

    @property
    def max_prefix(self) -> int:
        """How many of the last output tokens matter."""
        return int(self.prefixes.shape[1])

    def forbidden(self, output: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the ids that must not come next; ids may repeat.

        Args:
            output: int32, the last max_prefix generated tokens, or all if fewer; never prompt tokens.
        """
        end = np.full(self.max_prefix, _NOTHING, np.int32)
        end[self.max_prefix - len(output) :] = output
        matches: npt.NDArray[np.bool_] = ((self.prefixes == end) | (self.prefixes == _ANY)).all(axis=1)
        return self.last_ids[matches]

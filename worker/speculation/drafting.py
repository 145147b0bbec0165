"""What a runner needs to compute steps with drafts."""

from __future__ import annotations

from typing import NamedTuple

from splitserve.worker.graphs.drafted_graphs import DraftedGraphs
from splitserve.worker.speculation.speculator import Speculator


class Drafting(NamedTuple):
    """Both of one batch.

    Attributes:
        speculator: drafts.
        graphs: recordings of steps with drafts; None if every step runs eagerly.
    """

    speculator: Speculator
    graphs: DraftedGraphs | None

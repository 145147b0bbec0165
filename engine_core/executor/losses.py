"""What is reported of ranks that ended: which was the cause, and how did it end?"""

from __future__ import annotations

import time
from collections.abc import Callable

from splitserve.engine_core.errors import (
    ConfigError,
    ModelLoadError,
    RankLostError,
    SplitServeError,
    WorkerError,
)
from splitserve.engine_core.executor.last_words import LastWords
from splitserve.engine_core.executor.ranks import Ranks
from splitserve.engine_core.executor.worker_group import WorkerGroup
from splitserve.engine_core.ipc.worker_messages import WorkerFailed

# Longest wait from losing the pipe or socket until the exit code is known.
_EXIT_GRACE_S = 2
# How often to check meanwhile which ranks have ended or sent something.
_ASK_S = 0.1


class Losses:
    """Names the cause of a loss; used by the busy loop's thread, which waits for some seconds here.

    Args:
        group: the workers.
        ranks: what they owe, and their names.
        last_words: what they said.
        num_ranks: of the engine.
        before_waiting: called before it waits.
    """

    def __init__(
        self,
        group: WorkerGroup,
        ranks: Ranks,
        last_words: LastWords,
        num_ranks: int,
        before_waiting: Callable[[], None],
    ) -> None:
        self._group = group
        self._ranks = ranks
        self._last_words = last_words
        self._all_ranks = range(num_ranks)
        self._before_waiting = before_waiting

    def loss(self, rank: int, reason: str) -> SplitServeError:
        """Name the cause of a worker's end as well as it can be known."""
        self._before_waiting()
        how = self._group.how_it_ended(rank, _EXIT_GRACE_S) or reason or "it ended"
        # What it sent and printed before it ended tells more than its exit code.
        self._last_words.hear(self._group.router, self._ended())
        if rank in self._last_words.of:
            return self.cause(rank, self._last_words.of[rank])
        when = "" if self._ranks.are_serving else " while starting"
        tail = self._group.last_lines(rank)
        return WorkerError(
            f"{self._ranks.name(rank)} was lost{when}: {how}" + (f"; its last lines:\n{tail}" if tail else "")
        )

    def cause(self, rank: int, failed: WorkerFailed) -> SplitServeError:
        """Return what ended a rank: its own words, or the loss of the rank it waited for."""
        if failed.code != RankLostError.code:
            return self._failure(rank, failed)
        self._before_waiting()
        # Others may tell the same, and the one that is lost may be about to end, or to say why it does.
        end_s = time.monotonic() + _EXIT_GRACE_S
        while True:
            ended = self._ended()
            self._last_words.hear(self._group.router, ended)
            for other, words in self._last_words.of.items():
                if words.code != RankLostError.code:
                    return self._failure(other, words)
            silent = [other for other in self._all_ranks if other not in self._last_words.of]
            for other in silent:
                if other in ended:
                    return self.loss(other, "")
            if not silent:
                return WorkerError(f"the ranks lost contact with each other: {failed.message}")
            if time.monotonic() > end_s:
                names = " and ".join(map(self._ranks.name, silent))
                return WorkerError(f"{names} did not take part: {failed.message}")
            self._group.how_it_ended(silent[0], _ASK_S)

    def _ended(self) -> list[int]:
        return [rank for rank in self._all_ranks if self._group.how_it_ended(rank) is not None]

    def _failure(self, rank: int, failed: WorkerFailed) -> SplitServeError:
        for kind in (ModelLoadError, ConfigError):
            if failed.code == kind.code:
                node = self._group.where(rank)
                return kind(f"on node {node}: {failed.message}" if node else failed.message)
        return WorkerError(f"{self._ranks.name(rank)} failed ({failed.code}): {failed.message}")

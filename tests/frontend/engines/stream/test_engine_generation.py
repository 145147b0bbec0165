"""The completions of one request: taken within a limit, each in its turn."""

from __future__ import annotations

from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.engines.status import PoolStats
from splitserve.frontend.engines.stream.engine_generation import EngineGeneration
from splitserve.frontend.engines.stream.sequence_stream import ALL_TOKENS, SequenceStream


class Backlog(SequenceStream):
    """A completion with tokens that wait."""

    stopped_here = False
    finished = False

    def __init__(self, index: int, num_tokens: int) -> None:
        self.index = index
        self.num_tokens = num_tokens

    @property
    def behind(self) -> bool:
        return self.num_tokens > 0

    def take(self, max_tokens: int = ALL_TOKENS) -> OutputDelta | None:
        size = min(max_tokens, self.num_tokens)
        self.num_tokens -= size
        return OutputDelta(self.index, token_ids=[0] * size) if size else None


def make(*sizes: int) -> EngineGeneration:
    streams = [Backlog(index, size) for index, size in enumerate(sizes)]
    return EngineGeneration(EngineClient.__new__(EngineClient), streams, PoolStats())


def taken(generation: EngineGeneration, max_tokens: int) -> list[tuple[int, int]]:
    return [(delta.index, len(delta.token_ids)) for delta in generation.take(max_tokens)]


def test_no_more_than_the_limit_is_taken_and_the_rest_is_known_of() -> None:
    generation = make(3, 3)
    assert (taken(generation, 4), generation.behind) == ([(0, 3), (1, 1)], True)
    assert (taken(generation, 4), generation.behind) == ([(1, 2)], False)


def test_completions_that_found_no_room_come_first_the_next_time() -> None:
    generation = make(9, 9, 9)
    assert taken(generation, 2) == [(0, 2)]
    assert taken(generation, 2) == [(1, 2)]
    assert taken(generation, 2) == [(2, 2)]
    assert taken(generation, 2) == [(0, 2)]

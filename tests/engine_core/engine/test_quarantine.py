"""Who is suspected when workers are lost, who waits for whom, and who is cleared."""

from __future__ import annotations

from splitserve.engine_core.engine.quarantine import Quarantine
from splitserve.engine_core.request import Request, RequestState
from tests.engine_core.requests import make_request


class Bench:
    """Requests by name, and a quarantine that asks for their tokens here."""

    def __init__(self, count: int, num_siblings: int = 1) -> None:
        self.requests = [make_request(arrival=arrival) for arrival in range(count)]
        for i, request in enumerate(self.requests):
            request.siblings = self.requests[i - i % num_siblings].siblings
        self.num_known = dict.fromkeys(self.requests, 10)
        self.quarantine = Quarantine(self.num_known.__getitem__)

    def lost_with(self, *numbers: int) -> list[int]:
        unsafe = self.quarantine.worker_lost([self.requests[i] for i in numbers])
        return [i for i, request in enumerate(self.requests) if request.siblings in unsafe]

    def progress(self, *numbers: int) -> None:
        for i in numbers:
            self.num_known[self.requests[i]] += 1
        self.quarantine.look()

    def end(self, number: int) -> None:
        self.requests[number].state = RequestState.ENDED
        self.quarantine.look()

    @property
    def held(self) -> set[int]:
        return {i for i, request in enumerate(self.requests) if request.siblings in self.quarantine.held}


def test_the_first_loss_holds_nobody_back() -> None:
    bench = Bench(3)
    assert bench.lost_with(0, 1, 2) == []
    assert bench.held == set()
    assert len(bench.quarantine) == 3


def test_the_only_one_in_common_is_unsafe_and_forgotten() -> None:
    bench = Bench(3)
    bench.lost_with(0, 1)
    assert bench.lost_with(1, 2) == [1]
    assert bench.held == set()
    bench.progress(0, 2)
    assert len(bench.quarantine) == 0


def test_whoever_has_a_new_token_is_cleared() -> None:
    bench = Bench(2)
    bench.lost_with(0, 1)
    bench.progress(0)
    assert bench.lost_with(0, 1) == [1]


def test_progress_that_was_not_looked_at_counts_too() -> None:
    bench = Bench(2)
    bench.lost_with(0, 1)
    bench.num_known[bench.requests[0]] += 1
    assert bench.lost_with(0, 1) == [1]


def test_suspects_are_tried_one_at_a_time() -> None:
    bench = Bench(4)
    bench.lost_with(0, 1, 2)
    assert bench.lost_with(0, 1, 2, 3) == []
    assert bench.held == {1, 2}
    bench.progress(0)
    assert bench.held == {2}
    bench.end(1)
    assert bench.held == set()
    assert bench.lost_with(2, 0) == [2]


def test_one_that_ends_while_it_is_held_back_keeps_nobody_waiting() -> None:
    bench = Bench(3)
    bench.lost_with(0, 1, 2)
    bench.lost_with(0, 1, 2)
    bench.end(1)
    assert bench.held == {1, 2}
    bench.progress(0)
    assert bench.held == set()


def test_many_suspects_are_tried_in_eight_parts_until_one_is_left() -> None:
    bench = Bench(64)
    guilty = 37
    losses = 0
    while True:
        present = [i for i in range(64) if i not in bench.held]
        if guilty not in present:
            bench.progress(*present)
            continue
        losses += 1
        unsafe = bench.lost_with(*present)
        if unsafe:
            break
    assert unsafe == [guilty]
    assert losses == 4
    bench.end(guilty)
    while bench.held:
        bench.progress(*(i for i in range(64) if i not in bench.held))
    bench.progress(*range(64))
    assert len(bench.quarantine) == 0


def test_others_that_waited_for_their_turn_still_have_it() -> None:
    bench = Bench(20)
    everybody = range(20)
    bench.lost_with(*everybody)
    bench.lost_with(*everybody)
    assert bench.held == set(range(3, 20))
    bench.lost_with(0, 1, 2)
    assert bench.held == set(range(1, 20))
    for number in (0, 1, 2):
        bench.progress(number)
    assert bench.held == set(range(6, 20))


def test_a_loss_between_two_steps_blames_nobody() -> None:
    bench = Bench(1)
    bench.lost_with(0)
    assert bench.lost_with() == []
    assert bench.lost_with() == []
    assert isinstance(bench.requests[0], Request)


def test_the_sequences_of_a_request_are_one_suspect() -> None:
    bench = Bench(4, num_siblings=4)
    bench.lost_with(0, 1)
    assert bench.lost_with(1, 2) == [0, 1, 2, 3]


def test_a_request_is_cleared_when_each_of_its_sequences_got_on() -> None:
    bench = Bench(6, num_siblings=2)
    bench.lost_with(*range(6))
    bench.lost_with(*range(6))
    assert bench.held == {2, 3, 4, 5}
    bench.progress(0)
    assert bench.held == {2, 3, 4, 5}
    bench.end(1)
    assert bench.held == {4, 5}

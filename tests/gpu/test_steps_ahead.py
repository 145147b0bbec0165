"""Steady decode steps begin before the host knows the tokens of the step before them."""

from __future__ import annotations

import random
import string
from collections import deque
from typing import Any

import msgspec
import pytest

from splitserve.engine_core.executor.inproc import InprocExecutor
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.ipc.worker_messages import (
    FromWorkerMessage,
    ModelRunnerOutput,
    NewRow,
    SchedulerOutput,
)
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.step_graphs import StepHeld
from splitserve.worker.batch.step_pipeline import StepPipeline
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.gpu.conftest import Gpu
from tests.gpu.whole_worker import device_of
from tests.worker.graphs.pairing import plain_sampling
from tests.worker.runner.checkpoints import VOCAB, tokenizer, write_tiny_llama
from tests.worker.runner.test_batch_invariance import GRAMMARS
from tests.worker.runner.test_engine_core import Loaded, Loop, Served, random_requests

pytestmark = pytest.mark.slow

EOS = 2
# Each grammar can go on with these.
ENOUGH = string.ascii_lowercase + string.digits + ' {}":,'


def ids_of(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False).ids


class AheadExecutor(InprocExecutor):
    """Begins steps when they are submitted, as a worker's process does when they have arrived."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._answers: deque[ModelRunnerOutput] = deque()
        self._follows = worker.can_follow
        self._steps = StepPipeline(worker, self._answers.append)
        # Steps that began while another one was in flight.
        self.num_ahead = 0

    def submit(self, output: SchedulerOutput) -> None:
        self.num_ahead += self._steps.is_running and self._follows(output)
        self._steps.run(output, 0.0)

    def receive(self) -> list[FromWorkerMessage]:
        if not self._answers:
            self._steps.settle()
        return [self._answers.popleft()] if self._answers else super().receive()


def loop_ahead(loaded: Loaded, max_drafts: int = 0) -> tuple[Loop, AheadExecutor]:
    """A loop with two steps in flight whose second begins early where it may."""
    loop, executor = Loop(*loaded, depth=2, max_drafts=max_drafts), AheadExecutor(loaded[0])
    loop._executor = executor
    return loop, executor


@pytest.fixture
def loaded(gpu: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    checkpoint = write_tiny_llama(tmp_path_factory.mktemp("poisoned"), poisoned_token=7)
    config = WorkerConfig(
        model=str(checkpoint), num_threads=1, max_num_seqs=5, max_num_batched_tokens=32, block_size=4
    )
    worker = Worker(config, device_of(gpu))
    return worker, config, worker.load()


def told(request: Served) -> tuple[object, ...]:
    """What does not depend on the bits of a matrix product, which may depend on the number of rows."""
    assert request.finished is not None
    end = request.finished
    return request.tokens, sorted(request.logprobs), end.reason, end.stop_token_id, end.error_code


def plain_requests(rng: random.Random, count: int) -> list[Served]:
    return [
        Served([rng.randrange(8, VOCAB) for _ in range(rng.randint(1, 9))], plain_sampling(rng))
        for _ in range(count)
    ]


def check_against_one_by_one(loaded: Loaded, requests: list[Served], rng: random.Random) -> None:
    alone = [request.again() for request in requests]
    loop, executor = loop_ahead(loaded)
    loop.run(requests, rng)
    assert executor.num_ahead > 15
    Loop(*loaded, depth=1).run(alone, rng)
    assert [told(request) for request in requests] == [told(request) for request in alone]


def masked_requests(rng: random.Random, count: int) -> list[Served]:
    """Some with a grammar, some with tokens to choose from, some with both or neither; nothing else."""
    requests = plain_requests(rng, count)
    for i, request in enumerate(requests):
        request.sampling = msgspec.structs.replace(
            request.sampling,
            max_tokens=12,
            grammar=GRAMMARS[i % len(GRAMMARS)],
            allowed_token_ids=None if i % 4 else (EOS, *ids_of(ENOUGH)),
        )
    return requests


@pytest.mark.parametrize("seed", range(2))
def test_rows_with_masks_draw_when_the_step_before_is_known(loaded: Loaded, seed: int) -> None:
    rng = random.Random(seed)
    requests = [*masked_requests(rng, 9), *plain_requests(rng, 2)]
    check_against_one_by_one(loaded, requests, rng)
    assert any(request.finished.reason == FinishReason.STOP for request in requests if request.finished)


def test_a_grammar_that_fails_while_its_step_is_held_fails_its_row_alone(loaded: Loaded) -> None:
    sampling = SequenceSampling(temperature=1.0, max_tokens=12, seed=1, ignore_eos=True, grammar=GRAMMARS[1])
    requests = [Served([9, 10 + i], msgspec.structs.replace(sampling, seed=i)) for i in range(3)]
    expected = [request.again() for request in requests]
    Loop(*loaded, depth=1).run(expected)
    loop, executor = loop_ahead(loaded)
    worker = loaded[0]
    begin, held = worker.begin, 0

    def break_later(step: SchedulerOutput) -> object:
        nonlocal held
        started = begin(step)
        held += isinstance(started, StepHeld)
        if held == 4 and worker.runner is not None:
            # A token that no JSON begins with.
            grammar = worker.runner.batch.sampling.grammars[1]
            assert grammar.matcher is not None
            grammar.matcher.consume_token(ids_of("?")[0])
        return started

    worker.begin = break_later  # type: ignore[method-assign,assignment]
    try:
        loop.run(requests)
    finally:
        del worker.begin
    assert executor.num_ahead > 3
    assert [request.finished and request.finished.error_code for request in requests] == [
        "",
        "grammar_failed",
        "",
    ]
    assert [told(requests[i]) for i in (0, 2)] == [told(expected[i]) for i in (0, 2)]


def test_a_row_that_fails_before_a_held_step_is_told_with_one_whose_grammar_fails_in_it(
    loaded: Loaded,
) -> None:
    sampling = SequenceSampling(temperature=1.0, max_tokens=12, ignore_eos=True, grammar=GRAMMARS[1])
    requests = [Served([9, 10 + i], msgspec.structs.replace(sampling, seed=i)) for i in range(3)]
    expected = [request.again() for request in requests]
    Loop(*loaded, depth=1).run(expected)
    loop, executor = loop_ahead(loaded)
    worker = loaded[0]
    begin, held = worker.begin, 0

    def spoil(step: SchedulerOutput) -> object:
        nonlocal held
        runner = worker.runner
        assert runner is not None
        if held == 4:
            # What row 0 drew, in the device's own memory: there is no number behind it.
            runner.graphs._last_drawn[1] = 7
        started = begin(step)
        held += isinstance(started, StepHeld)
        if held == 6:
            grammar = runner.batch.sampling.grammars.get(1)
            if grammar is not None and grammar.matcher is not None:
                grammar.matcher.consume_token(ids_of("?")[0])
        return started

    worker.begin = spoil  # type: ignore[method-assign,assignment]
    try:
        loop.run(requests)
    finally:
        del worker.begin
    assert executor.num_ahead > 4
    codes = [request.finished and request.finished.error_code for request in requests]
    assert codes == ["numerical_error", "grammar_failed", ""]
    assert told(requests[2]) == told(expected[2])


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_those_of_steps_one_by_one(loaded: Loaded, seed: int) -> None:
    rng = random.Random(seed)
    requests = [*plain_requests(rng, 6), *random_requests(rng, 4)]
    check_against_one_by_one(loaded, requests, rng)


def test_only_steady_decode_steps_begin_ahead(loaded: Loaded) -> None:
    worker = loaded[0]
    worker.init_kv_cache(24, 8)
    # Row 2 asks for logprobs.
    rows = [
        NewRow(
            row,
            pack_int32([9, 10, 11]),
            3,
            0,
            pack_int32([5 * row, 5 * row + 1]),
            SequenceSampling(seed=0, logprobs=1 if row == 2 else None),
        )
        for row in range(3)
    ]
    worker.execute(SchedulerOutput(1, pack_int32([0, 1, 2]), pack_int32([3, 3, 3]), rows))
    new = NewRow(3, pack_int32([9]), 1, 0, pack_int32([20]), SequenceSampling(seed=0))

    def step(*chosen: int, **columns: Any) -> SchedulerOutput:
        return SchedulerOutput(2, pack_int32(chosen), pack_int32([1] * len(chosen)), **columns)

    for chosen in [(0,), (0, 1)]:
        # Its graph is not there yet, and might find no memory; an eager step has to know all tokens.
        assert not worker.can_follow(step(*chosen))
        worker.execute(step(*chosen))
        assert worker.can_follow(step(*chosen))
    assert worker.can_follow(step(0, block_rows=pack_int32([0]), block_ids=pack_int32([3])))
    assert not worker.can_follow(step(0, 2))
    assert not worker.can_follow(step(0, 3, new_rows=[new]))
    assert not worker.can_follow(step(0, freed_rows=pack_int32([1])))
    assert not worker.can_follow(step(0, moves_from=pack_int32([0]), moves_to=pack_int32([24])))
    assert not worker.can_follow(SchedulerOutput(2, pack_int32([0]), pack_int32([2])))
    assert not worker.can_follow(step(0, 9))
    assert not worker.can_follow(step(-1))
    assert not worker.can_follow(SchedulerOutput(2, b"", b""))


def test_a_chunk_of_one_token_waits_for_the_step_before(loaded: Loaded) -> None:
    worker = loaded[0]
    worker.init_kv_cache(24)
    row = NewRow(0, pack_int32([9, 10, 11, 12]), 4, 0, pack_int32([0, 1]), SequenceSampling(seed=0))
    one = SchedulerOutput(1, pack_int32([0]), pack_int32([1]))
    worker.execute(SchedulerOutput(1, pack_int32([0]), pack_int32([2]), [row]))
    assert not worker.can_follow(one)
    worker.execute(one)
    assert worker.can_follow(one)


def test_a_row_that_fails_while_the_next_step_runs_fails_alone(loaded: Loaded) -> None:
    sampling = SequenceSampling(temperature=0.0, max_tokens=12, seed=1, ignore_eos=True)
    probe = Served([9, 10], sampling)
    Loop(*loaded, depth=1).run([probe])
    healthy = [Served([11, 12 + i], sampling) for i in range(3)]
    expected = [request.again() for request in healthy]
    for request in expected:
        Loop(*loaded, depth=1).run([request])
    loop, executor = loop_ahead(loaded)
    worker = loaded[0]
    unlucky = probe.again()
    draws = 0
    runner = worker.runner
    assert runner is not None
    graphs = runner.graphs
    assert graphs is not None

    begin = worker.begin

    def poison_later(step: SchedulerOutput) -> object:
        nonlocal draws
        draws += 1
        started = begin(step)
        if draws == 4:
            # The device's own memory of what row 0 drew: the next step computes with the poisoned token.
            graphs._last_drawn[1] = 7  # type: ignore[attr-defined]
        return started

    worker.begin = poison_later  # type: ignore[method-assign,assignment]
    try:
        loop.run([unlucky, *healthy])
    finally:
        del worker.begin
    assert executor.num_ahead > 3
    assert unlucky.finished is not None
    assert unlucky.finished.error_code == "numerical_error"
    assert [told(request) for request in healthy] == [told(request) for request in expected]

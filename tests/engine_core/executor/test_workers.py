"""The executor and a real worker process that behaves, or does not."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
import psutil
import pytest
import zmq

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError, ModelLoadError, SplitServeError, WorkerError
from splitserve.engine_core.executor.local_workers import LocalWorkers
from splitserve.engine_core.executor.worker_process import worker_argv
from splitserve.engine_core.executor.workers import WorkersExecutor
from splitserve.engine_core.ipc.codec import encode, pack_int32, to_worker_decoder, unpack_int32
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    Configure,
    FromWorkerMessage,
    KVCacheReady,
    LoadProgress,
    ModelRunnerOutput,
    NewRow,
    SchedulerOutput,
    WorkerHello,
    WorkerReady,
)
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.settings.arguments import make_settings
from splitserve.engine_core.settings.setting import Setting, declared
from splitserve.engine_core.settings.worker_settings import WorkerPlace, WorkerSettings
from splitserve.worker.cli import read_place
from tests.engine_core.settings.values import other_value

DEADLINE_S = 60.0


class Bench:
    """An executor over fake workers, one per behaviour, and what they said so far."""

    def __init__(self, *behaviours: str) -> None:
        self.clock = ManualClock(100.0)
        config = EngineConfig(model="unused", step_timeout_s=5.0, tensor_parallel_size=len(behaviours))
        command = [sys.executable, "-m", "tests.engine_core.executor.fake_worker"]
        self.group = LocalWorkers(
            config, lambda place: [*command, behaviours[place.rank], place.connect, str(place.rank)]
        )
        self.executor = WorkersExecutor(config, self.clock, self.group)
        self.messages: list[FromWorkerMessage] = []
        self.executor.start()

    @property
    def worker(self) -> psutil.Process:
        hello = next(message for message in self.messages if isinstance(message, WorkerHello))
        return psutil.Process(hello.pid)

    def wait_until(self, accept: Callable[[], bool]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not accept():
            poller = zmq.Poller()
            for source in self.executor.sockets:
                poller.register(source, zmq.POLLIN)
            assert time.monotonic() < end_s, self.messages
            poller.poll(200)
            self.messages += self.executor.receive()

    def wait_for(self, kind: type[FromWorkerMessage], count: int = 1) -> None:
        self.wait_until(lambda: sum(isinstance(message, kind) for message in self.messages) >= count)

    def failure(self) -> SplitServeError:
        with pytest.raises(SplitServeError) as caught:
            self.wait_until(lambda: False)
        return caught.value

    def serve(self) -> None:
        self.wait_for(WorkerReady)
        self.executor.init_kv_cache(10, 7)
        self.wait_for(KVCacheReady)

    def step(self, number: int) -> None:
        new_rows = []
        if number == 1:
            prompt = pack_int32([5, 6, 7])
            new_rows = [NewRow(0, prompt, 3, 0, pack_int32([0]), SequenceSampling(seed=1))]
        num_tokens = 3 if number == 1 else 1
        self.executor.submit(
            SchedulerOutput(number, pack_int32([0]), pack_int32([num_tokens]), new_rows=new_rows)
        )

    def begin_third_step(self) -> None:
        """Serve two steps; it is in the third that fake workers misbehave."""
        self.serve()
        for number in (1, 2):
            self.step(number)
            self.wait_for(ModelRunnerOutput, number)
        self.step(3)


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeBench]:
    """Makes benches; afterwards neither their processes nor their files may be left."""
    benches: list[Bench] = []
    before = psutil.Process().children(recursive=True)

    def make(*behaviours: str) -> Bench:
        benches.append(Bench(*behaviours))
        return benches[-1]

    with tempfile.TemporaryDirectory(prefix="mp-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield make
        children = psutil.Process().children(recursive=True)
        for bench in benches:
            bench.executor.shutdown(0.5)
            bench.executor.shutdown(0.5)
        assert psutil.wait_procs(set(children) - set(before), DEADLINE_S)[1] == []
        assert os.listdir(folder) == []


def test_a_worker_loads_serves_and_ends(make_bench: MakeBench) -> None:
    bench = make_bench("well")
    bench.serve()
    assert [type(message) for message in bench.messages] == [
        WorkerHello,
        *[LoadProgress] * 3,
        WorkerReady,
        KVCacheReady,
    ]
    assert bench.messages[-1] == KVCacheReady(10, move_block_ns=7), (
        "the fake worker tells the tier's size here"
    )
    bench.step(1)
    bench.wait_for(ModelRunnerOutput)
    output = bench.messages[-1]
    assert isinstance(output, ModelRunnerOutput)
    assert unpack_int32(output.rows).tolist() == [0]
    worker = bench.worker
    bench.executor.shutdown(DEADLINE_S)
    assert not worker.is_running()


def test_two_steps_may_be_in_flight(make_bench: MakeBench) -> None:
    bench = make_bench("well")
    bench.serve()
    bench.step(1)
    bench.step(2)
    bench.wait_for(ModelRunnerOutput, 2)
    steps = [message.step for message in bench.messages if isinstance(message, ModelRunnerOutput)]
    assert steps == [1, 2]


def test_an_end_while_loading_is_told_with_the_last_lines(make_bench: MakeBench) -> None:
    error = make_bench("end while loading").failure()
    assert isinstance(error, WorkerError)
    assert "while starting" in str(error)
    assert "exit code 7" in str(error)
    assert "first line of the story\ncannot map the weights" in str(error)


def test_a_lost_rank_is_told_though_another_goes_on_telling_of_its_progress(make_bench: MakeBench) -> None:
    error = make_bench("tell of progress for ever", "end while loading").failure()
    assert "the worker of rank 1 was lost while starting: exit code 7" in str(error)


def receive_until_it_fails(executor: WorkersExecutor, poller: zmq.Poller) -> None:
    while poller.poll(int(DEADLINE_S * 1000)):
        executor.receive()


def test_a_command_that_cannot_be_started_is_named() -> None:
    config = EngineConfig(model="m")
    group = LocalWorkers(config, lambda place: ["/no/such/python", place.connect])
    executor = WorkersExecutor(config, ManualClock(), group)
    try:
        executor.start()
        poller = zmq.Poller()
        for source in group.sources:
            poller.register(source, zmq.POLLIN)
        with pytest.raises(WorkerError, match="/no/such/python"):
            receive_until_it_fails(executor, poller)
    finally:
        executor.shutdown(1.0)


@pytest.mark.parametrize(
    ("behaviour", "kind", "text"),
    [
        ("refuse the model", ModelLoadError, "shard 2 of 3 is missing"),
        ("refuse the flags", ConfigError, "--max-model-len is too long"),
        ("device fault", WorkerError, "the device fell off the bus"),
        ("garbage", WorkerError, "invalid message"),
        ("other version", WorkerError, "protocol"),
    ],
)
def test_what_a_worker_refuses_is_told_as_what_it_is(
    make_bench: MakeBench, behaviour: str, kind: type[SplitServeError], text: str
) -> None:
    error = make_bench(behaviour).failure()
    assert type(error) is kind
    assert text in str(error)


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("refuse the model", "on node 10.0.0.7 (ab12): shard 2 of 3 is missing"),
        ("device fault", "the worker on node 10.0.0.7 (ab12) failed"),
        ("end while loading", "the worker on node 10.0.0.7 (ab12) was lost while starting"),
    ],
)
def test_a_worker_on_another_machine_is_named_with_its_node(
    make_bench: MakeBench, behaviour: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalWorkers, "where", lambda self, rank: "10.0.0.7 (ab12)")
    assert text in str(make_bench(behaviour).failure())


def test_a_worker_killed_in_a_step_is_noticed_at_once(make_bench: MakeBench) -> None:
    bench = make_bench("killed in a step")
    bench.begin_third_step()
    error = bench.failure()
    assert "killed by SIGKILL" in str(error)
    assert "while starting" not in str(error)


def test_an_idle_worker_that_is_killed_is_noticed_at_once(make_bench: MakeBench) -> None:
    bench = make_bench("well")
    bench.serve()
    bench.worker.kill()
    assert "killed by SIGKILL" in str(bench.failure())


def test_a_step_beyond_its_deadline_is_a_loss(make_bench: MakeBench) -> None:
    bench = make_bench("hang in a step")
    bench.begin_third_step()
    assert bench.executor.poll_timeout_s() == pytest.approx(5.0)
    bench.clock.advance(4.9)
    assert bench.executor.receive() == []
    bench.clock.advance(0.2)
    assert bench.executor.poll_timeout_s() == 0.0
    with pytest.raises(WorkerError, match="step 3 within 5 s"):
        bench.executor.receive()


def test_the_second_step_in_flight_gets_its_whole_time(make_bench: MakeBench) -> None:
    bench = make_bench("well")
    bench.serve()
    bench.step(1)
    bench.clock.advance(4.0)
    # Submitted behind the first: its own time begins when that one is done.
    bench.step(2)
    bench.wait_for(ModelRunnerOutput, 2)
    assert bench.executor.poll_timeout_s() is None


def test_an_answer_to_another_step_is_a_loss(make_bench: MakeBench) -> None:
    bench = make_bench("answer another step")
    bench.begin_third_step()
    assert "answered step 999, expected 3" in str(bench.failure())


def test_a_worker_that_prints_much_is_never_blocked_by_it(
    make_bench: MakeBench, capfd: pytest.CaptureFixture[str]
) -> None:
    bench = make_bench("chatty")
    bench.serve()
    for number in range(1, 5):
        bench.step(number)
        bench.wait_for(ModelRunnerOutput, number)
    bench.executor.shutdown(DEADLINE_S)
    assert "much to say much to say" in capfd.readouterr().err


def test_a_worker_that_ignores_every_request_to_end_is_killed(make_bench: MakeBench) -> None:
    bench = make_bench("stubborn")
    bench.serve()
    worker = bench.worker
    bench.executor.shutdown(0.2)
    assert not worker.is_running()


def test_a_loading_worker_is_ended_without_waiting_for_it(make_bench: MakeBench) -> None:
    bench = make_bench("load for ever")
    bench.wait_for(LoadProgress)
    worker = bench.worker
    bench.executor.shutdown(0.0)
    assert not worker.is_running()


def test_no_file_is_left_once_the_worker_is_connected(make_bench: MakeBench) -> None:
    bench = make_bench("well")
    address = bench.group.router.address
    bench.wait_for(WorkerHello)
    assert not os.path.exists(os.path.dirname(address.removeprefix("ipc://")))


# A pipeline has no draft model.
@pytest.mark.parametrize(
    "changes",
    [
        {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 4,
            "speculate": "none",
            "speculative_config": "",
            "speculative_model": "",
        },
        {
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "speculate": "draft",
            "speculative_config": '{"num_speculative_tokens":3}',
        },
    ],
    ids=["several", "one"],
)
def test_a_worker_is_told_every_setting_it_needs(changes: dict[str, object]) -> None:
    values = {each.field: other_value(each) for each in declared(WorkerSettings)} | changes
    config = make_settings(EngineConfig, {**values, "step_timeout_s": 30.0})
    told = to_worker_decoder.decode(encode(LocalWorkers(config).configure(5)))
    assert isinstance(told, Configure)
    assert msgspec.structs.asdict(told.settings) == values
    assert (told.num_local_ranks, told.exchange_timeout_s) == (config.num_ranks, 24.0)


def test_a_setting_declared_for_workers_is_told_to_them() -> None:
    class MoreForWorkers(WorkerSettings, frozen=True, kw_only=True):
        heat: Annotated[int, Setting("degrees", "oven", low=0, high=300)] = 20

    class MoreOfEngine(MoreForWorkers, frozen=True, kw_only=True):
        bread: Annotated[str, Setting("kind of bread", "oven")] = "rye"

    config = make_settings(MoreOfEngine, {"heat": 200, "bread": "spelt"})
    frame = encode(Configure(config.narrowed_to(MoreForWorkers)))
    assert b"heat" in frame
    assert b"bread" not in frame
    assert b"heat" not in encode(Configure(config.narrowed_to(WorkerSettings)))


@pytest.mark.parametrize(
    "place",
    [
        WorkerPlace(connect="ipc:///x/worker.sock", rank=0),
        WorkerPlace(connect="ipc:///x/worker.sock", rank=3, rendezvous="file:///x/rendezvous"),
        WorkerPlace(connect="tcp://h:1", rank=1, rendezvous="tcp://h:2", rendezvous_fd=7),
    ],
)
def test_the_real_worker_finds_its_place_on_its_command_line(place: WorkerPlace) -> None:
    words = worker_argv(place)
    assert read_place(words[words.index("splitserve.worker.cli") + 1 :]) == place


def test_workers_that_were_stopped_are_started_when_they_are_wanted_again(make_bench: MakeBench) -> None:
    bench = make_bench("well", "well")
    bench.serve()
    for has_ended in (True, False):
        hellos = [each for each in bench.messages if isinstance(each, WorkerHello)]
        old = [psutil.Process(each.pid) for each in hellos[-2:]]
        bench.messages.clear()
        bench.executor.stop()
        if has_ended:
            bench.wait_until(lambda: bench.executor.poll_timeout_s() is None)
            assert not any(each.is_running() for each in old)
        assert bench.executor.receive() == []
        bench.executor.restart()
        bench.serve()
        assert not any(each.is_running() for each in old)
        bench.step(1)
        bench.wait_for(ModelRunnerOutput)


def test_workers_that_were_stopped_are_not_left_to_a_successor(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench("well")
    bench.serve()
    bench.executor.stop()
    left: list[str] = []
    monkeypatch.setattr(bench.group, "leave", lambda: left.append("left"))
    bench.executor.leave()
    assert left == []


def test_workers_that_serve_are_told_another_log_level(make_bench: MakeBench) -> None:
    bench = make_bench("well", "well")
    # Nobody is there to be told.
    bench.executor.set_log_level("debug")
    bench.serve()
    bench.executor.set_log_level("error")
    # The fake ones answer with what they were told, as adapters.
    bench.wait_for(AdapterLoaded)
    (answer,) = [message for message in bench.messages if isinstance(message, AdapterLoaded)]
    assert answer.digest == "error"

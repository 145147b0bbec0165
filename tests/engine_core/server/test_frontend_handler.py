"""What cannot be provoked over a socket: faults of the engine, and frontends lost in a send."""

from __future__ import annotations

import logging

import msgspec
import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import EngineConfig, SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.engine.listeners import Listeners
from splitserve.engine_core.ipc.codec import encode, engine_decoder, pack_int32
from splitserve.engine_core.ipc.messages import (
    Abort,
    AddRequest,
    Call,
    CallKind,
    CallResult,
    EngineMessage,
    Hello,
    LogLevelSet,
    Ping,
    Pong,
    Ready,
    Rejected,
    RequestStage,
    StepOutputs,
)
from splitserve.engine_core.ipc.transport import SendResult
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION, ModelInfo
from splitserve.engine_core.process.progress import StartupReport
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.server.frontend_handler import FrontendHandler
from splitserve.engine_core.server.frontends import FrontendTable
from splitserve.engine_core.server.request_log import RequestLog
from splitserve.engine_core.server.startup import Loaded, Startup
from tests.engine_core.server.test_start import RecordingExecutor

MODEL = ModelInfo("m", "LlamaForCausalLM", "bfloat16", 1000, 1000, [2])


class Bench:
    """A service over a real engine; what it sends is kept, or fails as told."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.sent: list[tuple[bytes, EngineMessage]] = []
        self.results: dict[bytes, SendResult] = {}
        self.config = config = EngineConfig(model="m", lease_s=10.0, kv_cache_memory_bytes=1000)
        self.table = FrontendTable(self.send, config.lease_s)
        startup = Startup(config, RecordingExecutor(), StartupReport(self.clock))
        self.handler = FrontendHandler(config, self.clock, 7, self.table, startup)
        listeners = Listeners(on_end=RequestLog(self.table).ended)
        self.engine = EngineCore(SchedulerConfig(), MODEL, 7, self.clock, listeners=listeners)
        self.handler.serve(self.engine, Loaded(MODEL, SchedulerConfig()))

    def send(self, identity: bytes, frame: bytes) -> SendResult:
        result = self.results.get(identity, SendResult.SENT)
        if result is SendResult.SENT:
            self.sent.append((identity, engine_decoder.decode(frame)))
        return result

    def say(self, identity: bytes, message: object) -> EngineMessage | None:
        self.sent.clear()
        self.handler.on_frame(identity, encode(message))
        return self.sent[-1][1] if self.sent else None


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    assert isinstance(bench.say(b"a", Hello(PROTOCOL_VERSION, "alice", "x")), Ready)
    return bench


def request(handle: int) -> AddRequest:
    return AddRequest(handle, f"r{handle}", pack_int32([1, 2]), SequenceSampling(seed=1))


def test_a_bug_that_a_request_finds_is_that_requests_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert bench.say(b"a", request(1)) is None

    def fail(frontend: bytes, message: AddRequest) -> None:
        raise ZeroDivisionError("secret detail")

    with monkeypatch.context() as patched:
        patched.setattr(bench.engine, "add", fail)
        rejected = bench.say(b"a", request(2))
    assert isinstance(rejected, Rejected)
    assert (rejected.handle, rejected.status, rejected.code) == (2, 500, "internal_error")
    assert "secret detail" not in rejected.message
    assert "ZeroDivisionError" in caplog.text
    assert bench.engine.stats().num_waiting == 1


def more(handle: int) -> AddRequest:
    return msgspec.structs.replace(request(handle), more=True)


def test_a_request_is_taken_when_its_last_sequence_has_come(bench: Bench) -> None:
    for handle in (1, 2):
        assert bench.say(b"a", more(handle)) is None
    assert bench.engine.stats().num_waiting == 0
    assert bench.say(b"a", request(3)) is None
    assert bench.engine.stats().num_waiting == 3


def test_a_request_is_refused_in_all_its_sequences(bench: Bench) -> None:
    bench.say(b"a", request(3))
    bench.say(b"a", more(1))
    bench.say(b"a", more(2))
    bench.say(b"a", request(3))
    refused = [message for _, message in bench.sent]
    assert [(each.handle, each.code) for each in refused if isinstance(each, Rejected)] == [
        (1, "duplicate_handle"),
        (2, "duplicate_handle"),
        (3, "duplicate_handle"),
    ]
    assert bench.engine.stats().num_waiting == 1


def test_a_frontend_lost_while_it_is_refused_leaves_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.say(b"a", more(1))
    bench.say(b"a", more(2))
    bench.results[b"a"] = SendResult.GONE
    bench.say(b"a", request(2))
    assert caplog.text.count("frontend left") == 1


def test_a_request_given_up_before_its_last_sequence_is_forgotten(bench: Bench) -> None:
    bench.say(b"a", more(1))
    bench.say(b"a", Abort([1]))
    bench.say(b"a", request(2))
    assert [request.handle for request in bench.engine._requests.table] == [2]


def test_open_requests_are_explained_to_who_asks(bench: Bench) -> None:
    bench.say(b"a", request(1))
    bench.say(b"a", request(2))
    result = bench.say(b"a", Call(1, CallKind.EXPLAIN_REQUESTS, ["r2"]))
    assert isinstance(result, CallResult)
    assert result.ok
    (info,) = result.requests
    assert (info.request_id, info.stage, info.position) == ("r2", RequestStage.WAITING, 1)
    result = bench.say(b"a", Call(2, CallKind.EXPLAIN_REQUESTS, [f"x{i}" for i in range(16)] + ["r1"]))
    assert result == CallResult(2, ok=True)


def test_a_ping_tells_of_the_queue(bench: Bench) -> None:
    bench.say(b"a", request(1))
    pong = bench.say(b"a", Ping(1))
    assert isinstance(pong, Pong)
    assert (pong.queue.num_waiting_tokens, pong.queue.waiting) == (2, {"tokens": 1})


def test_a_frontend_found_gone_by_a_send_loses_its_requests_at_once(bench: Bench) -> None:
    bench.say(b"b", Hello(PROTOCOL_VERSION, "bob", "x"))
    bench.say(b"a", request(1))
    bench.say(b"b", request(1))
    assert bench.engine.stats().num_waiting == 2
    bench.results[b"a"] = SendResult.GONE
    bench.handler.probe()
    assert bench.engine.stats().num_waiting == 1
    assert list(bench.table) == [b"b"]


def test_a_probe_says_nothing_to_those_who_are_there(bench: Bench) -> None:
    bench.sent.clear()
    bench.handler.probe()
    assert bench.sent == [(b"a", StepOutputs(7, b"", b"", b""))]


def test_a_lease_ends_after_its_time_unless_something_is_heard(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.say(b"a", request(1))
    bench.clock.advance(9.0)
    assert isinstance(bench.say(b"a", Ping(1)), Pong)
    bench.clock.advance(10.0)
    bench.handler.drop_silent()
    assert len(bench.table) == 1
    bench.clock.advance(0.1)
    bench.handler.drop_silent()
    assert len(bench.table) == 1
    bench.clock.advance(2.6)
    bench.handler.drop_silent()
    assert len(bench.table) == 0
    assert not bench.engine.has_requests
    assert 'frontend=alice reason="lease expired"' in caplog.text
    # Named although it is on its way out.
    assert "request ended request_id=r1 frontend=alice outcome=abort" in caplog.text


def test_a_ping_without_a_lease_is_answered_with_epoch_0(bench: Bench) -> None:
    pong = bench.say(b"stranger", Ping(9))
    assert isinstance(pong, Pong)
    assert (pong.nonce, pong.epoch) == (9, 0)
    assert bench.say(b"stranger", request(1)) is None
    assert not bench.engine.has_requests
    assert bench.handler.stats().protocol_errors == 2


def test_faults_of_one_peer_are_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(50):
        bench.handler.on_frame(b"a", b"\xff")
        bench.handler.on_frame(b"b", b"\xff")
    assert bench.handler.stats().protocol_errors == 100
    assert len([message for message in caplog.messages if message.startswith("invalid message")]) == 2


def test_what_is_remembered_of_faulty_peers_is_bounded(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3000):
        bench.handler.on_frame(b"peer %d" % number, b"\xff")
    assert len(bench.handler.faults._logged) == 1024
    assert bench.handler.stats().protocol_errors == 3000


def test_a_log_level_is_for_the_engine_and_all_frontends(bench: Bench) -> None:
    told: list[str] = []
    bench.handler.calls.on_log_level = told.append
    assert isinstance(bench.say(b"b", Hello(PROTOCOL_VERSION, "bob", "x")), Ready)
    result = bench.say(b"a", Call(5, CallKind.SET_LOG_LEVEL, log_level="error"))
    assert (result, told) == (CallResult(5, ok=True), ["error"])
    everyone = [identity for identity, message in bench.sent if message == LogLevelSet("error")]
    assert sorted(everyone) == [b"a", b"b"]

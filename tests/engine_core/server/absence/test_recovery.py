"""What frontends see and may do while lost workers are started again; no processes, no clock but ours."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.checkpoint.source import DEMO_MODEL
from splitserve.engine_core.errors import ConfigError, ModelLoadError, WorkerError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import (
    Abort,
    AddRequest,
    Draining,
    EngineMessage,
    HandOver,
    Hello,
    Ping,
    Pong,
    Ready,
    Recovering,
    Rejected,
    StepOutputs,
)
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.ipc.worker_messages import KVCacheReady, LoadProgress
from splitserve.engine_core.process.progress import StartupReport
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.server.absence.recovery import (
    LOSSES_WITHIN_S,
    MAX_FAILED_STARTS,
    MAX_LOSSES,
    STOPPED_S,
    Recovery,
)
from splitserve.engine_core.server.startup import Startup
from tests.engine_core.server.test_frontend_handler import Bench, request
from tests.engine_core.server.test_start import HELLO, RecordingExecutor, ready

LOSS = WorkerError("the worker was lost: killed by SIGKILL")
TOO_LITTLE = ConfigError("--kv-offload-gb asks for 2 GiB of memory, only 1 GiB are free")
REFUSED = ModelLoadError("model.safetensors: missing tensor 'lm_head.weight'")


class Losses:
    """A handler's bench whose workers can be lost; two frontends have joined."""

    def __init__(self, model: Path = DEMO_MODEL) -> None:
        self.bench = Bench()
        self.engine = self.bench.engine
        self.executor = RecordingExecutor()
        config = msgspec.structs.replace(self.bench.config, model=str(model))
        startup = Startup(config, self.executor, StartupReport(self.bench.clock))
        startup.begin()
        for message in (HELLO, ready(), KVCacheReady(7)):
            startup.on_message(message)
        self.bench.handler.phase._startup = startup
        self.recovery = Recovery(startup, self.bench.handler, self.bench.clock)
        for identity in (b"a", b"b"):
            self.bench.say(identity, Hello(PROTOCOL_VERSION, identity.decode(), "x"))

    def lose(self, fault: WorkerError | ConfigError | ModelLoadError = LOSS) -> None:
        self.bench.sent.clear()
        self.recovery.begin(self.engine, fault)

    def come_back(self) -> None:
        for message in (HELLO, LoadProgress(1, 4), ready(), KVCacheReady(7)):
            self.recovery.on_message(message)

    def told(self, identity: bytes = b"a") -> list[EngineMessage]:
        return [message for to, message in self.bench.sent if to == identity]


@pytest.fixture
def losses() -> Losses:
    return Losses()


def test_frontends_hear_of_each_stage_and_then_that_the_same_engine_is_ready(losses: Losses) -> None:
    losses.lose()
    losses.come_back()
    assert losses.executor.started == 2
    for identity in (b"a", b"b"):
        *stages, last = losses.told(identity)
        assert stages == [
            Recovering("starting the worker", 0.0),
            Recovering("loading weights", 0.0),
            Recovering("allocating the KV cache", 1.0),
        ]
        assert isinstance(last, Ready)
        assert (last.epoch, last.lease_renewed) == (7, True)
    assert not losses.recovery.is_active


def test_new_requests_are_rejected_and_old_ones_kept(losses: Losses) -> None:
    losses.bench.say(b"a", request(1))
    losses.lose()
    rejected = losses.bench.say(b"a", request(2))
    assert isinstance(rejected, Rejected)
    assert (rejected.status, rejected.code) == (503, "engine_unavailable")
    assert rejected.message == "the engine has lost its workers and is starting the worker"
    assert losses.engine.num_requests == 1
    losses.come_back()
    assert losses.bench.say(b"a", request(2)) is None
    assert losses.engine.num_requests == 2


def test_who_joins_meanwhile_hears_ready_first(losses: Losses) -> None:
    losses.lose()
    losses.bench.say(b"c", Hello(PROTOCOL_VERSION, "carol", "x"))
    first, second = losses.told(b"c")
    assert isinstance(first, Ready)
    assert not first.lease_renewed
    assert second == Recovering("starting the worker", 0.0)


def test_aborts_timeouts_and_leaving_frontends_work_meanwhile(losses: Losses) -> None:
    timed = AddRequest(3, "r3", pack_int32([1, 2]), SequenceSampling(seed=1), timeout_s=5.0)
    for identity, message in ((b"a", request(1)), (b"a", request(2)), (b"a", timed), (b"b", request(1))):
        losses.bench.say(identity, message)
    losses.engine.plan()
    losses.lose()
    losses.engine.check_integrity()
    losses.bench.say(b"a", Abort([1]))
    losses.bench.handler.drop(b"b", "connection gone")
    assert losses.engine.num_requests == 2
    losses.bench.clock.advance(6.0)
    losses.engine.expire()
    losses.bench.sent.clear()
    losses.bench.handler.send_outputs()
    (outputs,) = losses.told()
    assert isinstance(outputs, StepOutputs)
    assert [(end.handle, end.error_code) for end in outputs.finished] == [(3, "timeout")]
    losses.engine.check_integrity()
    losses.come_back()
    assert losses.engine.plan() is not None
    assert losses.engine.stats().num_running == 1


def test_a_drain_goes_on_meanwhile_and_is_told_of_again(losses: Losses) -> None:
    losses.bench.say(b"a", request(1))
    losses.lose()
    losses.bench.handler.drain(30.0)
    assert losses.told()[-1] == Draining(timeout_s=30.0)
    losses.bench.clock.advance(10.0)
    losses.bench.sent.clear()
    losses.come_back()
    assert [type(message) for message in losses.told()[-2:]] == [Ready, Draining]
    assert losses.told()[-1] == Draining(timeout_s=20.0)
    pong = losses.bench.say(b"a", Ping(1))
    assert isinstance(pong, Pong)
    assert pong.draining


def test_requests_are_handed_over_meanwhile_without_an_end(losses: Losses) -> None:
    losses.bench.say(b"a", request(1))
    losses.engine.plan()
    losses.lose()
    losses.bench.sent.clear()
    losses.bench.handler.hand_over("the engine is being replaced")
    *outputs, last = losses.told()
    assert last == HandOver("the engine is being replaced")
    assert all(isinstance(each, StepOutputs) and not each.finished for each in outputs)
    assert losses.engine.num_requests == 0
    losses.engine.check_integrity()


def test_workers_lost_while_they_start_are_started_once_more(losses: Losses) -> None:
    losses.lose()
    losses.recovery.on_message(HELLO)
    losses.lose()
    assert losses.told() == [Recovering("starting the worker", 0.0)]
    losses.come_back()
    assert losses.executor.started == 3
    assert losses.engine.stats().num_worker_restarts == 2


def test_the_third_start_in_a_row_that_fails_is_the_last(losses: Losses) -> None:
    for _ in range(MAX_FAILED_STARTS):
        losses.lose()
        losses.bench.clock.advance(LOSSES_WITHIN_S)
    with pytest.raises(WorkerError, match="could not be started again 3 times: the worker was lost"):
        losses.lose()


@pytest.mark.parametrize("fault", [TOO_LITTLE, REFUSED])
def test_what_workers_lack_while_they_start_may_be_there_the_next_time(
    losses: Losses, fault: ConfigError | ModelLoadError
) -> None:
    losses.lose()
    losses.lose(fault)
    losses.come_back()
    assert not losses.recovery.is_active


@pytest.mark.parametrize("refusal", [TOO_LITTLE, REFUSED])
def test_what_workers_refuse_of_a_checkpoint_that_was_changed_is_the_end(
    refusal: ConfigError | ModelLoadError, tmp_path: Path
) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1234")
    losses = Losses(tmp_path)
    weights.write_bytes(b"12")
    losses.lose()
    with pytest.raises(WorkerError, match=r"^the checkpoint was changed while it was served: "):
        losses.lose(refusal)


def test_a_start_that_succeeds_makes_up_for_those_that_failed(losses: Losses) -> None:
    for _ in range(3):
        for _ in range(MAX_FAILED_STARTS):
            losses.lose()
            losses.bench.clock.advance(LOSSES_WITHIN_S)
        losses.come_back()
    assert not losses.recovery.is_active


def test_a_worker_that_is_stopped_while_it_starts_counts_as_lost(losses: Losses) -> None:
    losses.lose()
    losses.recovery.look("the worker")
    losses.bench.clock.advance(STOPPED_S)
    losses.recovery.look("")
    losses.recovery.look("the worker")
    losses.bench.clock.advance(STOPPED_S - 0.1)
    losses.recovery.look("the worker")
    losses.bench.clock.advance(0.1)
    with pytest.raises(WorkerError, match="stopped by a signal while starting: the worker"):
        losses.recovery.look("the worker")


def test_the_sixth_loss_within_a_minute_is_the_last(losses: Losses) -> None:
    for _ in range(MAX_LOSSES):
        losses.lose()
        losses.come_back()
        losses.bench.clock.advance(LOSSES_WITHIN_S / MAX_LOSSES - 1)
    with pytest.raises(WorkerError, match="lost workers 6 times within 60 s: the worker was lost: killed"):
        losses.lose()


def test_losses_that_are_far_between_never_end_the_engine(losses: Losses) -> None:
    for _ in range(5 * MAX_LOSSES):
        losses.lose()
        losses.come_back()
        losses.bench.clock.advance(LOSSES_WITHIN_S / MAX_LOSSES)
    assert losses.engine.stats().num_worker_restarts == 5 * MAX_LOSSES

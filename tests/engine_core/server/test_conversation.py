"""What a frontend says to a real engine-core, and what it hears."""

from __future__ import annotations

import logging
import tempfile

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from splitserve.engine_core.ipc.codec import encode, pack_int32, unpack_int64
from splitserve.engine_core.ipc.curve import create_keys, load_client_keys
from splitserve.engine_core.ipc.messages import (
    Abort,
    AddRequest,
    Call,
    CallKind,
    CallResult,
    FinishReason,
    Hello,
    Pong,
    Ready,
    Refused,
    Rejected,
    StepOutputs,
)
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.server.harness import DEADLINE_S, Engine, Sequence, held_port, running_engine


def test_hello_is_answered_with_ready(engine: Engine) -> None:
    ready = engine.client().join()
    assert ready.protocol_version == PROTOCOL_VERSION
    assert ready.engine_id == "engine-0"
    assert ready.epoch > 0
    assert ready.model.max_model_len == 4096
    assert ready.lease_s == 30
    assert not ready.lease_renewed


def test_frontends_hear_of_a_pool_smaller_than_the_context() -> None:
    with running_engine("--num-blocks", "24") as engine:
        assert engine.client().join().model.max_model_len == 24 * 16


def test_a_second_hello_renews_the_lease(engine: Engine) -> None:
    client = engine.joined()
    assert client.join().lease_renewed


def test_a_request_gets_its_tokens_and_one_end(engine: Engine) -> None:
    client = engine.joined()
    tokens = client.generate(1, [1, 2, 3], max_tokens=25)
    assert len(tokens) == 25
    finished = client.sequences[1].finished
    assert finished is not None
    assert finished.reason is FinishReason.LENGTH


def test_tokens_depend_on_the_request_alone(engine: Engine) -> None:
    first, second = engine.joined(), engine.joined()
    for handle in range(2, 10):
        second.add(handle, [handle] * handle, max_tokens=30)
    assert first.generate(1, [4, 5, 6], max_tokens=20) == second.generate(1, [4, 5, 6], max_tokens=20)


def test_two_frontends_may_use_the_same_handle(engine: Engine) -> None:
    first, second = engine.joined(), engine.joined()
    first.add(1, [1], max_tokens=10)
    second.add(1, [2], max_tokens=10)
    assert first.finish(1).token_ids != second.finish(1).token_ids


def test_an_abort_frees_the_blocks_at_once(engine: Engine) -> None:
    client = engine.joined()
    client.add(1, list(range(1000)), max_tokens=3000)
    client.stats_when(lambda stats: stats.num_running == 1)
    client.send(Abort([1, 999]))
    stats = client.ping().stats
    assert stats.num_running == 0
    assert client.stats_when(lambda stats: stats.num_free_blocks == stats.num_blocks)


def test_a_request_that_is_wrong_is_rejected_by_name(engine: Engine) -> None:
    client = engine.joined()
    client.add(1, [32000], max_tokens=5)
    rejected = client.wait_for(Rejected)
    assert (rejected.handle, rejected.status, rejected.code) == (1, 400, "invalid_value")
    client.add(2, [1] * 5000, max_tokens=5)
    rejected = client.wait_for(Rejected)
    assert (rejected.handle, rejected.code) == (2, "context_length_exceeded")
    assert "4096" in rejected.message
    assert "5000" in rejected.message


def test_a_torn_token_column_is_rejected_and_counted(engine: Engine) -> None:
    client = engine.joined()
    before = client.ping().stats.protocol_errors
    client.send(AddRequest(3, "r", b"12345", SequenceSampling(seed=1)))
    rejected = client.wait_for(Rejected)
    assert (rejected.handle, rejected.status, rejected.code) == (3, 400, "protocol_error")
    assert client.ping().stats.protocol_errors == before + 1


def test_a_ping_tells_what_the_engine_does(engine: Engine) -> None:
    client = engine.joined()
    client.generate(1, [1, 2], max_tokens=5)
    pong = client.ping()
    assert not pong.draining
    assert pong.epoch == client.join().epoch
    assert pong.stats.num_frontends >= 1
    assert pong.stats.generation_tokens >= 5
    assert pong.stats.finished["length"] >= 1


def test_utility_calls_are_answered(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    # One of them sets the level of the root logger, and this puts it back.
    caplog.set_level(logging.INFO)
    client = engine.joined()
    for kind in CallKind:
        client.send(Call(call_id=40 + kind, kind=kind))
        result = client.wait_for(CallResult)
        # Without --lora-dir adapters are fixed.
        of_adapters = kind in (CallKind.LOAD_ADAPTER, CallKind.UNLOAD_ADAPTER)
        assert (result.call_id, result.requests) == (40 + kind, [])
        assert (result.ok, result.status) == ((False, 403) if of_adapters else (True, 500))
        assert (result.view is not None) == (kind is CallKind.VIEW_ENGINE)


def test_another_protocol_version_is_refused_with_both_versions(engine: Engine) -> None:
    client = engine.client()
    client.send(Hello(PROTOCOL_VERSION + 1, "from the future", "9.9.9"))
    refused = client.wait_for(Refused)
    assert refused.protocol_version == PROTOCOL_VERSION
    assert f"version {PROTOCOL_VERSION}" in refused.message
    assert f"version {PROTOCOL_VERSION + 1}" in refused.message
    assert "9.9.9" in refused.message


def test_before_hello_only_a_ping_is_answered_and_says_so(engine: Engine) -> None:
    stranger, witness = engine.client(), engine.joined()
    before = witness.ping().stats
    stranger.add(1, [1], max_tokens=2)
    pong = stranger.ping()
    assert pong.epoch == 0
    assert stranger.sequences[1].token_ids == []
    assert witness.stats_when(lambda stats: stats.protocol_errors == before.protocol_errors + 2)
    assert stranger.join().epoch > 0
    assert len(stranger.generate(1, [1], max_tokens=2)) == 2


def test_every_message_of_one_step_comes_in_one_frame(engine: Engine) -> None:
    client = engine.joined()
    for handle in range(8):
        client.add(handle, [handle + 1], max_tokens=4000)
    while not all(client.sequences[handle].token_ids for handle in range(8)):
        client.wait_for(StepOutputs)
    for _ in range(20):
        running = {handle for handle in range(8) if client.sequences[handle].finished is None}
        outputs = client.wait_for(StepOutputs, lambda outputs: outputs.handles != b"")
        # A step has a token of each; of an engine that is behind a message holds several steps.
        assert set(unpack_int64(outputs.handles).tolist()) == running
    client.send(Abort(list(range(8))))
    client.ping()


def test_a_prompt_of_many_frames_is_refused_as_one_message(engine: Engine) -> None:
    client = engine.joined()
    before = client.ping().stats.protocol_errors
    client.send_frames(*[encode(Hello(PROTOCOL_VERSION, "x", "y"))] * 500)
    assert client.stats_when(lambda stats: stats.protocol_errors == before + 1)
    client.send_frames(b"", encode(AddRequest(1, "r", pack_int32([1]), SequenceSampling(seed=1))))
    assert client.stats_when(lambda stats: stats.protocol_errors == before + 2)
    assert isinstance(client.ping(), Pong)
    assert isinstance(client.join(), Ready)


def test_a_request_that_ends_is_logged_in_one_line_without_its_text(engine: Engine) -> None:
    client = engine.joined("logged")
    prompt = [31000 + number for number in range(33)]
    client.generate(771, prompt, max_tokens=21)
    lines = [line for line in engine.log().splitlines() if "request_id=req-771" in line]
    assert len(lines) == 1
    for field in (
        "frontend=logged",
        "outcome=length",
        "prompt_tokens=33",
        "output_tokens=21",
        "cached_tokens=0",
    ):
        assert field in lines[0]
    assert "31000" not in engine.log()


def test_an_aborted_request_is_logged_with_what_it_got(engine: Engine) -> None:
    client = engine.joined()
    client.add(772, [1], max_tokens=4000)
    while len(client.sequences[772].token_ids) < 5:
        client.wait_for(StepOutputs)
    client.send(Abort([772]))
    client.ping()
    (line,) = [line for line in engine.log().splitlines() if "request_id=req-772" in line]
    assert "outcome=abort" in line
    assert int(line.partition("output_tokens=")[2].split()[0]) >= 5


def test_a_request_id_cannot_forge_a_log_line(engine: Engine) -> None:
    client = engine.joined()
    client.sequences[1] = Sequence()
    forged = "x\n2026-01-01 00:00:00.000 ERROR engine_core forged"
    client.send(AddRequest(1, forged, pack_int32([1]), SequenceSampling(seed=1, max_tokens=1)))
    client.finish(1)
    assert not any(line.startswith("2026-01-01") for line in engine.log().splitlines())
    assert "forged" in engine.log()


def test_a_request_beyond_its_timeout_ends_with_an_error(engine: Engine) -> None:
    client = engine.joined()
    client.sequences[1] = Sequence()
    sampling = SequenceSampling(seed=1, max_tokens=4000, ignore_eos=True)
    client.send(AddRequest(1, "slow", pack_int32([1]), sampling, timeout_s=0.05))
    finished = client.finish(1).finished
    assert finished is not None
    assert finished.reason is FinishReason.ERROR
    assert (finished.error_code, finished.error_status) == ("timeout", 504)


def test_over_tcp_a_frontend_with_keys_is_served_and_a_stranger_is_not() -> None:
    with tempfile.TemporaryDirectory() as folder, held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        create_keys(f"{folder}/ours")
        create_keys(f"{folder}/theirs")
        ours = load_client_keys(f"{folder}/ours")
        theirs = load_client_keys(f"{folder}/theirs")._replace(server=ours.server)
        # The last --listen wins over the one of the harness.
        with running_engine("--listen", address, "--keys", f"{folder}/ours") as engine:
            engine.address = address
            stranger = engine.client("stranger", theirs)
            ends = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            with stranger.socket.get_monitor_socket(ends) as monitor:
                stranger.hello()
                assert monitor.poll(int(DEADLINE_S * 1000))
                assert recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
                stranger.socket.disable_monitor()
            client = engine.client("friend", ours)
            client.join()
            assert len(client.generate(1, [1], max_tokens=5)) == 5
            assert client.ping().stats.num_frontends == 1
            assert not stranger.socket.poll(0)

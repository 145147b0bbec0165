"""No bytes a peer can send hurt the engine or the peer beside it."""

from __future__ import annotations

import random

import pytest

from splitserve.engine_core.ipc.codec import encode, pack_int32
from splitserve.engine_core.ipc.messages import (
    Abort,
    AddRequest,
    Call,
    CallKind,
    FrontendMessage,
    Hello,
    Ping,
    Pong,
    Rejected,
)
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.server.harness import Engine

NUM_MUTATIONS = 4000
LAST_NONCE = 2**62

VALID: list[FrontendMessage] = [
    Hello(PROTOCOL_VERSION, "fuzz", "0"),
    AddRequest(
        1,
        "r",
        pack_int32([1, 2, 3]),
        SequenceSampling(seed=1, max_tokens=3, stop_token_ids=(7,), logit_bias={5: 1.0}),
    ),
    Abort([1, 2, 3]),
    Ping(5),
    Call(1, CallKind.EXPLAIN_REQUESTS),
]


def mutate(rng: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        kind, place = rng.randrange(5), rng.randrange(len(data) + 1)
        if kind == 0 and data:
            data[place % len(data)] = rng.randrange(256)
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            data[place:place] = rng.randbytes(rng.randint(1, 8))
        elif kind == 3:
            data[place:place] = rng.choice(
                (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 64, b"\xcb\x7f\xf8" + bytes(6))
            )
        else:
            data += rng.choice(VALID_FRAMES)
    return bytes(data)


VALID_FRAMES = [encode(message) for message in VALID]


def test_mutated_frames_disturb_nobody(engine: Engine) -> None:
    reference = engine.joined().generate(1, [9, 8, 7], max_tokens=400)
    neighbour, fuzzer = engine.joined("neighbour"), engine.joined("fuzzer")
    before = neighbour.ping().stats.protocol_errors
    neighbour.add(2, [9, 8, 7], max_tokens=400)
    rng = random.Random(2024)
    for _ in range(NUM_MUTATIONS):
        fuzzer.send_frames(mutate(rng, rng.choice(VALID_FRAMES)))
        while fuzzer.socket.poll(0):
            fuzzer.socket.recv()
    # What comes behind them is answered when all of them were taken.
    fuzzer.send(Ping(LAST_NONCE))
    fuzzer.wait_for(Pong, lambda pong: pong.nonce == LAST_NONCE)
    assert neighbour.finish(2).token_ids == reference
    assert neighbour.ping().stats.protocol_errors >= before + NUM_MUTATIONS // 2
    fuzzer.close()
    # Some of them were valid requests.
    neighbour.stats_when(lambda stats: stats.num_running + stats.num_waiting == 0)
    log = engine.log()
    assert log.count("peer=fuzzer") <= 4, "logged once per peer, not once per message"
    assert "Traceback" not in log


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc0", id="nil"),
        pytest.param(b"\x90", id="no tag"),
        pytest.param(b"\x92\x63\x01", id="unknown tag"),
        pytest.param(b"\x92\xa1\x00\x01", id="tag of a wrong type"),
        pytest.param(b"\x91\x01", id="missing fields"),
        pytest.param(b"\x94\x00\x01\xa2\xff\xfe\xa1x", id="invalid utf-8"),
        pytest.param(b"\x92\x02" + b"\x91" * 100_000, id="100,000 levels deep"),
        pytest.param(b"\x92\x02\xdd\xff\xff\xff\xff", id="four billion elements claimed"),
        pytest.param(b"\x92\x03\xcb\x7f\xf8" + bytes(6), id="NaN for an integer"),
        pytest.param(b"\x92\x03\xd4\x01\x00", id="extension type"),
        pytest.param(b"\x93\x04\x01\x09", id="call of no known kind"),
        pytest.param(b"\x80\x04\x95", id="a pickle"),
    ],
)
def test_a_malformed_frame_is_counted(engine: Engine, frame: bytes) -> None:
    client = engine.joined()
    before = client.ping().stats.protocol_errors
    client.send_frames(frame)
    assert client.ping().stats.protocol_errors == before + 1


def test_an_oversized_message_cuts_its_sender_only(engine: Engine) -> None:
    neighbour, flooder = engine.joined(), engine.joined("flooder")
    neighbour.add(1, [1, 2], max_tokens=100)
    flooder.add(1, [1, 2], max_tokens=4000)
    before = neighbour.stats_when(lambda stats: stats.num_running == 2).finished.get("abort", 0)
    flooder.send_frames(bytes(65 * 2**20))
    assert len(neighbour.finish(1).token_ids) == 100
    # The connection is gone, so the requests of its frontend end.
    stats = neighbour.stats_when(lambda stats: stats.num_running == 0)
    assert stats.finished["abort"] == before + 1


def test_numbers_outside_their_range_are_rejected_one_by_one(engine: Engine) -> None:
    client = engine.joined()
    wrong: list[dict[str, object]] = [
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"max_tokens": -1},
        {"min_tokens": 2**40},
        {"seed": 2**64 - 1, "top_k": -5},
        {"logit_bias": {40000: 1.0}},
        {"stop_token_ids": (99999,)},
        {"logprobs": 10**6},
    ]
    for handle, params in enumerate(wrong):
        client.add(handle, [1], **params)
        rejected = client.wait_for(Rejected)
        assert (rejected.handle, rejected.status) == (handle, 400), params
    assert client.ping().stats.num_running == 0


def test_frames_after_an_end_are_ignored(engine: Engine) -> None:
    client = engine.joined()
    client.generate(1, [1], max_tokens=2)
    client.send(Abort([1]))
    client.send(Abort([]))
    client.send(Abort([2**63 - 1, -1, 0]))
    assert client.ping().stats.num_running == 0

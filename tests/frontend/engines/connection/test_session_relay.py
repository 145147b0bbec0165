"""A session and its handed-over streams: what native code writes, and what comes back for Python to do."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.ipc.messages import Abort, FinishReason
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.sequence_table import MAX_WAKES_PER_TURN
from splitserve.frontend.engines.connection.session import EngineSession
from splitserve.frontend.engines.connection.token_relay import MAX_FLUSHED_PER_TURN, Frame, Route
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from splitserve.frontend.metrics.histogram import Histogram
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import byte_level, write_checkpoint
from tests.frontend.engines.messages import add, end, outputs, ready, tokens

FRAME = Frame(b"<", b">")
LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_checkpoint(tmp_path_factory.mktemp("model"), byte_level()))


def event(text: str) -> bytes:
    """A chunk of the chunked encoding with one event."""
    body = b'<"%b">' % text.encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


class Sequence:
    """One sequence whose stream writes to a socket pair, by either way, and counts its wake-ups."""

    def __init__(self, session: EngineSession, tokenizer: Tokenizer, handle: int) -> None:
        self.session = session
        self.num_wakes = 0
        self.source = session.open(add(handle), self.wake)
        self.stream = SequenceStream(0, self.source, SamplingParams(), [0, 1], tokenizer)
        self.latency = Histogram((1.0, 2.0))
        self.fd, self._reader = socket.socketpair()
        self.fd.setblocking(False)
        self._reader.setblocking(False)
        self.received = b""

    def wake(self) -> None:
        self.num_wakes += 1

    def hand_over(self, last_token_s: float = 0.0) -> bool:
        route = Route(self.fd.fileno(), FRAME, self.latency.buckets, last_token_s)
        return self.stream.hand_over(route)

    def read(self) -> bytes:
        try:
            while data := self._reader.recv(2**20):
                self.received += data
        except BlockingIOError:
            pass
        return self.received

    def close(self) -> None:
        self.fd.close()
        self._reader.close()


class Rig:
    """A ready session with sequences 1..n."""

    def __init__(self, tokenizer: Tokenizer, num_sequences: int = 1) -> None:
        self.session = EngineSession("f", "0")
        self.session.receive(ready(), 0.0)
        self.all = {h: Sequence(self.session, tokenizer, h) for h in range(1, num_sequences + 1)}
        self.session.outbox.clear()
        self.letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in LETTERS]

    @property
    def one(self) -> Sequence:
        return self.all[1]

    def bring(self, *rows: tuple[int, str, int], ended: tuple[int, ...] = (), now_s: float = 0.0) -> bool:
        """Receive one message, rows being (handle, letter, index), and wake up."""
        coded = [(handle, self.letters[LETTERS.index(letter)], index) for handle, letter, index in rows]
        finished = [end(handle, FinishReason.STOP) for handle in ended]
        self.session.receive(outputs(coded, finished), now_s)
        return self.session.sequences.wake_up(now_s)


@pytest.fixture
def rig(tokenizer: Tokenizer) -> Iterator[Rig]:
    rig = Rig(tokenizer)
    rig.bring((1, "a", 0))
    assert rig.one.stream.take().text == "a"
    assert rig.one.hand_over()
    rig.one.num_wakes = 0
    yield rig
    rig.one.close()


def test_tokens_of_a_handed_over_stream_are_written_and_nobody_is_woken(rig: Rig) -> None:
    assert rig.bring((1, "b", 1)) is False
    assert rig.bring((1, "c", 2), (1, "d", 3)) is False
    assert (rig.one.read(), rig.one.num_wakes) == (event("b") + event("cd"), 0)
    back = rig.one.stream.take_back()
    assert (back.num_taken, back.num_body_bytes) == (3, len('<"b">') + len('<"cd">'))
    assert [rig.letters.index(token_id) for token_id in rig.one.source.token_ids] == [0, 1, 2, 3]
    assert (rig.one.stream.take(), rig.one.stream.take_back()) == (None, None)


def test_times_between_tokens_are_counted_as_python_counts_them(rig: Rig) -> None:
    rig.bring((1, "b", 1), now_s=1.0)
    rig.bring((1, "c", 2), (1, "d", 3), now_s=4.0)
    assert (list(rig.one.latency._counts), rig.one.latency.sum) == ([1, 2, 0], 4.0)
    back = rig.one.stream.take_back()
    assert (back.last_token_s, back.last_write_s) == (4.0, 4.0)


def test_tokens_that_wait_at_the_hand_over_are_written_with_the_next_ones(rig: Rig) -> None:
    rig.one.stream.take_back()
    rig.session.receive(tokens(1, [rig.letters[1]], 1), 0.0)
    assert rig.one.hand_over()
    rig.bring((1, "c", 2))
    assert rig.one.read() == event("bc")


def test_the_last_token_comes_back_with_the_end(rig: Rig) -> None:
    rig.bring((1, "b", 1))
    rig.bring((1, "c", 2), ended=(1,))
    assert (rig.one.read(), rig.one.num_wakes) == (event("b"), 1)
    assert rig.one.stream.take_back().num_taken == 1
    delta = rig.one.stream.take()
    assert (delta.text, len(delta.token_ids), delta.finish_reason) == ("", 1, "stop")


def test_a_full_socket_gives_the_stream_back_with_what_it_did_not_take(rig: Rig) -> None:
    index = 1
    while not rig.one.num_wakes:
        rig.bring((1, "b", index))
        index += 1
        assert index < 100_000
    back = rig.one.stream.take_back()
    sent = rig.one.read() + back.unsent
    assert back.unsent
    assert sent == event("b") * (index - 1)
    assert back.num_taken == len(rig.one.source.token_ids) - 1 == index - 1
    assert rig.session.sequences.num_relayed == 0


def test_a_broken_connection_gives_the_stream_back(rig: Rig) -> None:
    rig.one._reader.close()
    rig.bring((1, "b", 1))
    assert rig.one.num_wakes == 1
    assert rig.one.stream.take_back().unsent == event("b")


def test_a_repeated_token_is_dropped_and_the_stream_goes_on(rig: Rig) -> None:
    rig.bring((1, "b", 1), (1, "b", 1))
    assert rig.session.sequences.num_out_of_order == 1
    assert rig.one.num_wakes == 1
    rig.one.stream.take_back()
    assert rig.one.stream.take().text == "b"
    assert rig.one.hand_over()
    rig.bring((1, "c", 2))
    assert rig.one.read() == event("c")


def test_a_gap_ends_the_stream(rig: Rig) -> None:
    rig.bring((1, "d", 3))
    assert rig.one.num_wakes == 1
    rig.one.stream.take_back()
    with pytest.raises(EngineUnavailableError, match="tokens of the output were lost"):
        rig.one.stream.take()
    assert list(rig.session.outbox) == [Abort([1])]


def test_a_lost_engine_gives_back_streams_with_all_their_tokens(rig: Rig) -> None:
    rig.session.receive(tokens(1, [rig.letters[1]], 1), 0.0)
    rig.session.disconnected(0.0)
    rig.session.sequences.wake_up(0.0)
    assert (rig.one.num_wakes, rig.one.read()) == (1, b"")
    assert len(rig.one.source.token_ids) == 2
    assert isinstance(rig.one.source.error, EngineUnavailableError)


def test_an_aborted_stream_is_written_no_more(rig: Rig) -> None:
    rig.session.receive(tokens(1, [rig.letters[1]], 1), 0.0)
    rig.session.abort([1])
    rig.bring((1, "c", 2))
    assert (rig.one.read(), rig.session.sequences.num_relayed) == (b"", 0)
    assert rig.session.sequences.stale_outputs == 1


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(stop=("x",)), SamplingParams(logprobs=0), SamplingParams(prompt_logprobs=0)],
)
def test_what_is_more_than_text_stays_with_python(tokenizer: Tokenizer, sampling: SamplingParams) -> None:
    rig = Rig(tokenizer)
    rig.one.stream = SequenceStream(0, rig.one.source, sampling, [0, 1], tokenizer)
    assert not rig.one.hand_over()
    rig.one.close()


@pytest.mark.parametrize("ended", [True, False])
def test_a_sequence_that_has_ended_stays_with_python(tokenizer: Tokenizer, ended: bool) -> None:
    rig = Rig(tokenizer)
    if ended:
        rig.bring(ended=(1,))
    else:
        rig.session.disconnected(0.0)
    assert not rig.one.hand_over()
    rig.one.close()


def test_one_message_serves_both_ways_and_one_turn_is_bounded(tokenizer: Tokenizer) -> None:
    num_python, num_native = MAX_WAKES_PER_TURN + 8, MAX_FLUSHED_PER_TURN + 5
    rig = Rig(tokenizer, num_python + num_native)
    native = [rig.all[handle] for handle in range(num_python + 1, num_python + num_native + 1)]
    assert all(sequence.hand_over() for sequence in native)
    assert rig.bring(*((handle, "a", 0) for handle in reversed(rig.all))) is True
    assert sum(sequence.num_wakes for sequence in rig.all.values()) == MAX_WAKES_PER_TURN
    assert sum(bool(sequence.read()) for sequence in native) == MAX_FLUSHED_PER_TURN
    assert rig.session.sequences.wake_up(0.0) is False
    assert [sequence.num_wakes for sequence in rig.all.values()] == [1] * num_python + [0] * num_native
    assert [sequence.read() for sequence in native] == [event("a")] * num_native
    for sequence in rig.all.values():
        sequence.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tokens"), st.lists(st.integers(1, 3), min_size=1, max_size=6)),
        st.tuples(st.sampled_from(["hand over", "take back", "abort"]), st.integers(1, 3)),
        st.tuples(st.just("wake up"), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
def test_whoever_writes_a_stream_every_token_comes_once_and_in_order(
    tokenizer: Tokenizer, steps: list[tuple[str, list[int] | int | None]]
) -> None:
    """Python's deltas are written to the same socket, so that what it receives is the order of all."""
    rig = Rig(tokenizer, 3)
    letters: dict[int, str] = {1: "", 2: "", 3: ""}
    handed: set[int] = set()

    def take(handle: int) -> None:
        sequence = rig.all[handle]
        if handle in handed:
            handed.discard(handle)
            assert sequence.stream.take_back().unsent == b""
        delta = sequence.stream.take()
        if delta is not None:
            sequence.fd.send(event(delta.text))

    value: Any
    for kind, value in steps:
        match kind:
            case "tokens":
                rows = []
                for handle in value:
                    letter = LETTERS[len(letters[handle]) % len(LETTERS)]
                    rows.append((handle, rig.letters[LETTERS.index(letter)], len(letters[handle])))
                    letters[handle] += letter
                rig.session.receive(outputs(rows), 0.0)
            case "hand over":
                if value not in handed and value in rig.session.sequences and rig.all[value].hand_over():
                    handed.add(value)
            case "take back":
                take(value)
            case "abort":
                take(value)
                rig.session.abort([value])
            case "wake up":
                rig.session.sequences.wake_up(0.0)
    for handle, sequence in rig.all.items():
        is_open = handle in rig.session.sequences
        take(handle)
        shown = "".join(re.findall('<"(.*)">', sequence.read().decode()))
        assert shown == (letters[handle] if is_open else letters[handle][: len(shown)])
        assert len(sequence.source.token_ids) == sequence.source.num_taken == len(shown)
        sequence.close()

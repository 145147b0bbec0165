"""What an engine's messages bring to open sequences: tokens, ends, errors, and who is woken for them."""

from __future__ import annotations

import functools

import pytest

from splitserve.engine_core.errors import (
    ContextLengthError,
    EngineRequestError,
    EngineUnavailableError,
    InvalidRequestError,
    OverloadedError,
    ProtocolError,
)
from splitserve.engine_core.ipc.codec import pack_int32, pack_int64
from splitserve.engine_core.ipc.messages import Abort, Finished, FinishReason, Rejected, Started, StepOutputs
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import EngineSession
from tests.frontend.engines.messages import add, end, logprob, outputs, ready, tokens

NOW = 100.0


class Opened:
    """A ready session with open sequences that count their wake-ups."""

    def __init__(self, *handles: int) -> None:
        self.session = EngineSession("f", "0")
        self.session.receive(ready(), NOW)
        self.wakes: dict[int, int] = dict.fromkeys(handles, 0)
        self.sequences: dict[int, OpenSequence] = {}
        for handle in handles:
            self.sequences[handle] = self.session.open(add(handle), functools.partial(self._wake, handle))
        self.session.outbox.clear()

    def _wake(self, handle: int) -> None:
        self.wakes[handle] += 1


def test_tokens_of_all_messages_that_have_arrived_wake_their_sequence_once() -> None:
    opened = Opened(1, 2, 3)
    opened.session.receive(outputs([(1, 10, 0), (2, 20, 0), (1, 11, 1)]), NOW)
    opened.session.receive(outputs([(1, 12, 2)]), NOW)
    assert opened.wakes == {1: 0, 2: 0, 3: 0}
    opened.session.sequences.wake_up(NOW)
    assert opened.sequences[1].token_ids.tolist() == [10, 11, 12]
    assert opened.sequences[2].token_ids.tolist() == [20]
    assert opened.wakes == {1: 1, 2: 1, 3: 0}
    opened.session.receive(outputs([(2, 21, 1)]), NOW)
    opened.session.sequences.wake_up(NOW)
    opened.session.sequences.wake_up(NOW)
    assert opened.wakes == {1: 1, 2: 2, 3: 0}


def test_sequences_that_share_a_callable_wake_it_once_when_all_have_their_tokens() -> None:
    session = Opened().session
    seen: list[list[int]] = []
    sequences: list[OpenSequence] = []

    def look() -> None:
        seen.append([len(sequence.token_ids) for sequence in sequences])

    sequences += [session.open(add(handle), look) for handle in (1, 2, 3)]
    session.receive(outputs([(1, 10, 0), (2, 20, 0), (1, 11, 1)], [end(3)]), NOW)
    session.sequences.wake_up(NOW)
    assert seen == [[2, 1, 0]]


def test_outputs_of_another_epoch_are_dropped() -> None:
    opened = Opened(1)
    opened.session.receive(outputs([(1, 10, 0)], [end(1)], epoch=7), NOW)
    assert not opened.sequences[1].token_ids
    assert opened.sequences[1].finished is None
    assert opened.session.sequences.stale_outputs == 1


def test_a_repeated_token_is_dropped() -> None:
    opened = Opened(1)
    opened.session.receive(tokens(1, [10, 11]), NOW)
    opened.session.receive(tokens(1, [11, 12], first=1), NOW)
    assert opened.sequences[1].token_ids.tolist() == [10, 11, 12]
    assert opened.session.sequences.num_out_of_order == 1


def test_a_gap_gives_the_sequence_up_and_aborts_it() -> None:
    opened = Opened(1, 2)
    opened.session.receive(outputs([(1, 10, 0), (1, 12, 2), (1, 13, 3), (2, 20, 0)]), NOW)
    assert "tokens of the output were lost" in str(opened.sequences[1].error)
    assert opened.sequences[1].token_ids.tolist() == [10]
    assert list(opened.session.outbox) == [Abort([1])]
    assert opened.sequences[2].token_ids.tolist() == [20]


def test_columns_that_do_not_fit_are_a_protocol_error_and_change_nothing() -> None:
    opened = Opened(1)
    for handles, token_ids in (([1], [1, 2]), ([1, 1], [1])):
        with pytest.raises(ProtocolError):
            opened.session.receive(
                StepOutputs(1, pack_int64(handles), pack_int32(token_ids), pack_int32([0])), NOW
            )
    assert not opened.sequences[1].token_ids


def test_the_end_comes_with_the_last_token() -> None:
    opened = Opened(1)
    finished = Finished(1, FinishReason.STOP, 5, num_cached_tokens=3)
    opened.session.receive(outputs([(1, 5, 0)], [finished]), NOW)
    opened.session.sequences.wake_up(NOW)
    assert opened.sequences[1].finished == finished
    assert opened.sequences[1].num_cached_tokens == 3
    assert opened.wakes[1] == 1
    assert 1 not in opened.session.sequences


def test_started_and_logprobs_are_kept_for_their_sequence() -> None:
    opened = Opened(1)
    message = outputs(
        [(1, 5, 0)], logprobs=[logprob(1, 0, 5), logprob(99, 0, 5)], prompt_logprobs=[logprob(1, 1, 2)]
    )
    started = StepOutputs(1, b"", b"", b"", started=[Started(1, 2, 0.1), Started(99, 1, 0.1)])
    opened.session.receive(started, NOW)
    opened.session.receive(message, NOW)
    sequence = opened.sequences[1]
    assert (len(sequence.logprobs), sequence.num_cached_tokens) == (1, 2)
    assert sequence.prompt_logprobs == [None, message.prompt_logprobs[0]]


@pytest.mark.parametrize(
    ("rejected", "kind"),
    [
        (Rejected(1, 400, "invalid_value", "bad top_k", "top_k"), InvalidRequestError),
        (Rejected(1, 400, "context_length_exceeded", "too long", "prompt"), ContextLengthError),
        (Rejected(1, 404, "model_not_found", "what", "model"), InvalidRequestError),
        (Rejected(1, 429, "overloaded", "full", retry_after_s=2.5), OverloadedError),
        (Rejected(1, 503, "engine_unavailable", "draining"), EngineUnavailableError),
        (Rejected(1, 500, "request_failed", "oops"), EngineRequestError),
    ],
)
def test_a_rejection_becomes_the_typed_error(rejected: Rejected, kind: type[Exception]) -> None:
    opened = Opened(1)
    opened.session.receive(rejected, NOW)
    opened.session.sequences.wake_up(NOW)
    error = opened.sequences[1].error
    assert type(error) is kind
    assert (error.status, error.code, str(error)) == (rejected.status, rejected.code, rejected.message)
    assert getattr(error, "param", None) == rejected.param
    assert getattr(error, "retry_after_s", 0.0) == rejected.retry_after_s
    assert opened.wakes[1] == 1


def test_an_error_finish_becomes_an_error() -> None:
    opened = Opened(1)
    failed = Finished(
        1, FinishReason.ERROR, error_code="row_failed", error_message="NaN logits", error_status=500
    )
    opened.session.receive(outputs([], [failed]), NOW)
    assert isinstance(opened.sequences[1].error, EngineRequestError)
    assert opened.sequences[1].error.code == "row_failed"


def test_abort_is_sent_for_open_handles_only() -> None:
    opened = Opened(1, 2)
    opened.session.abort([1, 77])
    opened.session.abort([1])
    assert list(opened.session.outbox) == [Abort([1])]
    opened.session.receive(tokens(1, [5]), NOW)
    assert opened.session.sequences.stale_outputs == 1

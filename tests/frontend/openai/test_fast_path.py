"""The fast path of one completion: entered after its first token, and counted as if Python had done it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.session import EngineSession
from splitserve.frontend.engines.connection.token_relay import Frame
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from splitserve.frontend.metrics.generation_timer import GenerationTimer
from splitserve.frontend.metrics.process import ModelMetrics
from splitserve.frontend.openai.answers.usage import UsageCounter
from splitserve.frontend.openai.fast_path import TextFastPath
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import byte_level, write_checkpoint
from tests.frontend.engines.messages import add, ready, tokens


class Rig:
    """An open sequence of a ready engine and the fast path to a socket pair; the clock stands at 1 s."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.session = EngineSession("f", "0")
        self.session.receive(ready(), 0.0)
        source = self.session.open(add(1), lambda: None)
        self.stream = SequenceStream(0, source, SamplingParams(), [0, 1], tokenizer)
        self.metrics = ModelMetrics()
        self.timer = GenerationTimer(self.metrics, lambda: 1.0)
        self.usage = UsageCounter([2], 1)
        self.path = TextFastPath(
            self.stream, Frame(b"<", b">"), self.metrics.inter_token_latency.buckets, self.timer, self.usage
        )
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self._letter = tokenizer.encode("a", add_special_tokens=False)[0]
        self._num_tokens = 0

    def bring(self, num_tokens: int, now_s: float) -> None:
        """Receive tokens, and wake up."""
        self.session.receive(tokens(1, [self._letter] * num_tokens, self._num_tokens), now_s)
        self._num_tokens += num_tokens
        self.session.sequences.wake_up(now_s)

    def take(self) -> None:
        """Take and count in Python."""
        delta = self.stream.take()
        assert delta is not None
        self.timer.on_delta(delta)
        self.usage.add(0, delta)


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(Tokenizer(write_checkpoint(tmp_path_factory.mktemp("model"), byte_level())))
    yield rig
    rig.ours.close()
    rig.theirs.close()


def test_a_stream_enters_it_after_its_first_token_only(rig: Rig) -> None:
    assert not rig.path.hand_over(rig.ours.fileno())
    rig.bring(1, 1.0)
    assert not rig.path.hand_over(rig.ours.fileno())
    rig.take()
    assert rig.path.hand_over(rig.ours.fileno())


def test_tokens_and_times_count_as_if_python_had_written_them(rig: Rig) -> None:
    rig.bring(1, 1.0)
    rig.take()
    assert rig.path.take_back() is None
    assert rig.path.hand_over(rig.ours.fileno())
    assert rig.path.last_write_s() == 0.0
    rig.bring(2, 5.0)
    assert rig.path.last_write_s() == 5.0
    back = rig.path.take_back()
    assert back is not None
    assert rig.theirs.recv(100) == b'6\r\n<"aa">\r\n'
    assert (back.num_taken, back.num_body_bytes, rig.path.last_write_s()) == (2, 6, 0.0)
    assert (rig.usage.completion_tokens, rig.timer.last_token_s) == (3, 5.0)
    latency = rig.metrics.inter_token_latency
    assert (latency.count, latency.sum) == (2, 4.0)

"""The fast path of a stream of plain text: native code writes it, from the engine's message to the socket.

Streams enter and leave it here, and what native code did meanwhile is counted as if Python had done it. The
rules about who writes when are in frontend.engines.connection.token_relay.
"""

from __future__ import annotations

from splitserve.frontend.engines.connection.token_relay import Frame, LatencyBuckets, Relayed, Route
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from splitserve.frontend.metrics.generation_timer import GenerationTimer
from splitserve.frontend.openai.answers.usage import UsageCounter


class TextFastPath:
    """Hands the only completion of a request to native code and takes it back."""

    __slots__ = ("_frame", "_latency", "_stream", "_timer", "_usage")

    def __init__(
        self,
        stream: SequenceStream,
        frame: Frame,
        latency: LatencyBuckets,
        timer: GenerationTimer,
        usage: UsageCounter,
    ) -> None:
        """Prepare; nothing is handed over.

        Args:
            stream: of the completion.
            frame: of its events.
            latency: gets the time between two tokens.
            timer: the completion's.
            usage: the request's.
        """
        self._stream = stream
        self._frame = frame
        self._latency = latency
        self._timer = timer
        self._usage = usage

    def hand_over(self, fd: int) -> bool:
        """Let native code write what comes next to a socket, until take_back(); return whether it does.

        It does not before the first token, nor where the stream has to stay in Python.
        """
        last_token_s = self._timer.last_token_s
        if last_token_s is None:
            return False
        return self._stream.hand_over(Route(fd, self._frame, self._latency, last_token_s))

    def take_back(self) -> Relayed | None:
        """Count what native code did since hand_over(); None if nothing was handed over."""
        back = self._stream.take_back()
        if back is not None:
            self._timer.on_relayed(back.num_taken, back.last_token_s)
            self._usage.completion_tokens += back.num_taken
        return back

    def last_write_s(self) -> float:
        """Monotonic time of native code's last event, 0 for none."""
        relayed = self._stream.source.relayed
        return 0.0 if relayed is None else relayed.last_write_s()

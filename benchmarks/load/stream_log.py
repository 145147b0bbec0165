"""What do the bytes of one stream say? They are kept as they come and read when it has ended."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from benchmarks.compare.stream_client import Arrival, read_events
from benchmarks.load.plan import Ask, End, Seen

END = b"data: [DONE]"
# Ends that are in what the server said: the kernel has noted when it came.
_SAID = (End.WHOLE, End.REFUSED, End.FAILED)


class StreamLog:
    """One request of a client process.

    Args:
        request_id: as it is sent with the request.
        ask: what was asked.
        sent_s: on time.time(); set anew when the connection is there and the request goes out.
    """

    def __init__(self, request_id: str, ask: Ask, sent_s: float) -> None:
        self.request_id = request_id
        self.ask = ask
        self.sent_s = sent_s
        self.arrivals: list[Arrival] = []

    def read(self, end: End, ended_s: float, right: str) -> Seen:
        """Say what came; `end` is how the connection was left, BROKEN if the server closed it."""
        try:
            status, events = read_events(self.arrivals)
            text, error, times, num_chars = _collect(events)
        except (msgspec.DecodeError, ValueError):
            status, text, error, times, num_chars = 0, "", "invalid", array("d"), array("i")
        if error:
            end = End.FAILED if status == 200 else End.REFUSED
        elif end is End.BROKEN and END in _tail(self.arrivals):
            end = End.WHOLE
        is_right = right.startswith(text) and (end is not End.WHOLE or right == text)
        return Seen(
            request_id=self.request_id,
            body=self.ask.body,
            port=self.ask.port,
            reader=self.ask.reader,
            end=end,
            status=status,
            error=error,
            sent_s=self.sent_s,
            ended_s=self.arrivals[-1].time_s if end in _SAID else ended_s,
            is_right=is_right or not right,
            text="" if right else text,
            event_times=times.tobytes(),
            num_chars=num_chars.tobytes(),
        )


def _collect(events: Any) -> tuple[str, str, array[float], array[int]]:
    """Return text, error code, and time and characters so far of each event with text."""
    pieces: list[str] = []
    times, num_chars = array("d"), array("i")
    total = 0
    for time_s, event in events:
        if "error" in event:
            return "".join(pieces), event["error"].get("code") or "error", times, num_chars
        for choice in event.get("choices") or ():
            if text := choice.get("text"):
                pieces.append(text)
                total += len(text)
                times.append(time_s)
                num_chars.append(total)
    return "".join(pieces), "", times, num_chars


def _tail(arrivals: list[Arrival]) -> bytes:
    return b"".join(data for _, data in arrivals[-4:])

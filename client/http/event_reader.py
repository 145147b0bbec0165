"""Where do server-sent events begin and end in the bytes that come? No I/O."""

from __future__ import annotations

from splitserve.client.http.errors import ApiError

MAX_EVENT_BYTES = 2**26
DONE = b"[DONE]"


class EventReader:
    """Finds the data of events in a stream of bytes, however it is cut.

    Attributes:
        is_done: whether OpenAI's last event, `[DONE]`, has come.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self.is_done = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each event that is complete now; comments and `[DONE]` are left out.

        Raises:
            ApiError: an event is larger than 64 MiB.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ApiError("an event of the answer is larger than 64 MiB")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                event = b"\n".join(self._data)
                self._data.clear()
                if event == DONE:
                    self.is_done = True
                else:
                    events.append(event)
        return events

"""Is a file one of requests that a batch can be made of? Every line is read before any is answered."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from splitserve.engine_core.batch_lines.request_line import LineError, RequestLine, read_request
from splitserve.frontend.batches.run.line_source import Line
from splitserve.frontend.batches.schema.batches import BatchFault

# The first are enough to see what is wrong.
MAX_FAULTS = 64


class Validation:
    """What is known of a file after some of its lines.

    Attributes:
        num_lines: so far, without blank ones.
        faults: the first of what is wrong.
    """

    def __init__(self, endpoint: str, max_lines: int, max_line_bytes: int) -> None:
        """Begin.

        Args:
            endpoint: that every line must name.
            max_lines: the most that a batch may have.
            max_line_bytes: of one.
        """
        self.num_lines = 0
        self.faults: list[BatchFault] = []
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes
        self._seen: dict[str, int] = {}

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing that follows matters."""
        return len(self.faults) >= MAX_FAULTS or self.num_lines > self._max_lines

    def read(self, lines: Sequence[Line]) -> None:
        """Check some lines."""
        for line in lines:
            self.num_lines += 1
            if self.is_hopeless:
                break
            try:
                self._check(line)
            except LineError as error:
                self.faults.append(
                    BatchFault(code=error.code, message=str(error), param=error.param, line=line.number)
                )
        if self.num_lines > self._max_lines:
            self._add("too_many_requests", f"a batch may have {self._max_lines} requests at most")

    def end(self) -> None:
        """Check what only the end shows."""
        if not self.num_lines:
            self._add("empty_file", "the file has no requests")

    def _add(self, code: str, message: str) -> None:
        self.faults.append(BatchFault(code=code, message=message))

    def _check(self, line: Line) -> None:
        if not line.data:
            raise LineError("line_too_long", f"a line may have {self._max_line_bytes} bytes at most")
        request = read_request(line.data)
        if request.url != self._endpoint:
            raise LineError(
                "mismatched_endpoint", f"url must be the batch's endpoint, {self._endpoint}", "url"
            )
        earlier = self._seen.setdefault(request.custom_id, line.number)
        if earlier != line.number:
            raise LineError(
                "duplicate_custom_id",
                f"custom_id is that of line {earlier}: {request.custom_id!r}",
                "custom_id",
            )
        _check_body(request)


def _check_body(request: RequestLine) -> None:
    if bytes(request.body.get("background", msgspec.Raw(b"false"))) not in (b"false", b"null"):
        raise LineError(
            "invalid_request", "a batch waits for its answers: leave out body.background", "body.background"
        )

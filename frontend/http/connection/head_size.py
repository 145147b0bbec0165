"""How much of a request's head has arrived, and is it too much?"""

from __future__ import annotations

from splitserve.frontend.http.errors import HttpError

MAX_HEADER_BYTES = 16 * 1024
MAX_HEADERS = 64


class HeadSize:
    """Counts one head after another; a body's trailers count with the head before it.

    Attributes:
        is_open: whether a head has started and its blank line has not arrived.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._num_bytes = 0

    def begin(self) -> None:
        """Start counting a new head."""
        self.is_open = True
        self._num_bytes = 0

    def end(self) -> None:
        """The blank line has arrived."""
        self.is_open = False

    def add(self, num_bytes: int, num_headers: int = 0) -> bool:
        """Count a parsed part; return whether the total is within the limits.

        Args:
            num_bytes: size of the part.
            num_headers: headers of the head so far, including this one.
        """
        self._num_bytes += num_bytes
        return self._num_bytes <= MAX_HEADER_BYTES and num_headers <= MAX_HEADERS

    def add_unfinished(self, num_bytes: int) -> bool:
        """Count data that ends within a head; a single endless header is never parsed as a part.

        Returns:
            Whether that is within twice the limit, as some of the data may have been counted as parts.
        """
        self._num_bytes += num_bytes
        return self._num_bytes <= 2 * MAX_HEADER_BYTES


def head_too_large() -> HttpError:
    """Return the error for a head over the limits."""
    return HttpError(
        431,
        "headers_too_large",
        f"There may be at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in total.",
    )

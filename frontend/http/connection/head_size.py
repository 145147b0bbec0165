"""How much of a request's head has come, and when it is too much."""

from __future__ import annotations

from splitserve.frontend.http.errors import HttpError

MAX_HEADER_BYTES = 16 * 1024
MAX_HEADERS = 64


class HeadSize:
    """Counts one head after another, and the trailers of a body with the head before it.

    Attributes:
        is_open: between the first byte of a head and its blank line.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._num_bytes = 0

    def begin(self) -> None:
        """Count a new head."""
        self.is_open = True
        self._num_bytes = 0

    def end(self) -> None:
        """The blank line has come."""
        self.is_open = False

    def add(self, num_bytes: int, num_headers: int = 0) -> bool:
        """Count a part that was read; return whether all is within the limits.

        Args:
            num_bytes: size of the part.
            num_headers: those of the head so far, with this one.
        """
        self._num_bytes += num_bytes
        return self._num_bytes <= MAX_HEADER_BYTES and num_headers <= MAX_HEADERS

    def add_unfinished(self, num_bytes: int) -> bool:
        """Count data that ends within a head, as a single header that never ends is never read as a part.

        Returns:
            Whether that is within twice the limit, for some of the data may have been counted as parts.
        """
        self._num_bytes += num_bytes
        return self._num_bytes <= 2 * MAX_HEADER_BYTES


def head_too_large() -> HttpError:
    """Return the error of a head over the limits."""
    return HttpError(
        431,
        "headers_too_large",
        f"There may be at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in total.",
    )

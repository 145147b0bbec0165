"""What asking an API can fail with."""

from __future__ import annotations

from splitserve.engine_core.errors import SplitServeError


class ApiError(SplitServeError):
    """A server refused a request, ended its answer with an error, or could not be reached.

    Attributes:
        status: of the answer, 0 if there is none.
        retry_after_s: the wait that the server asks for, 0 if it does not.
        body: of the answer.
    """

    code = "api_error"

    def __init__(self, message: str, status: int = 0, retry_after_s: float = 0.0, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.body = body

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later: too much load, a fault of the server, no connection."""
        return self.status in (0, 408, 409, 425, 429) or self.status >= 500

"""What the response store cannot do."""

from __future__ import annotations

from splitserve.engine_core.errors import InvalidRequestError, SplitServeError


class StoreUnavailableError(SplitServeError):
    """The response store does not answer, or answers with an error; the message is for the log only."""

    code = "response_store_unavailable"
    status = 503


class RecordTooLargeError(InvalidRequestError):
    """A response and its input are larger than what the store takes of one."""

    code = "response_too_large"

    def __init__(self, num_bytes: int, max_bytes: int) -> None:
        super().__init__(
            f"the response and its input take {num_bytes} bytes, and at most {max_bytes} of one are kept, a "
            "quarter of --response-store-bytes; ask again with store: false",
            "store",
        )

"""What the file store cannot do."""

from __future__ import annotations

from splitserve.engine_core.errors import SplitServeError


class FileStoreUnavailableError(SplitServeError):
    """The file store does not answer, or answers with an error; the message is for the log only."""

    code = "file_store_unavailable"
    status = 503

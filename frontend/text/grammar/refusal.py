"""Why a grammar is not served: what is raised where it is made, which is in the child process."""

from __future__ import annotations


class RefusalError(Exception):
    """The request's fault.

    Attributes:
        path: of the place within the field, "" for the whole.
        field: of the request, "" for the one that the grammar is of.
    """

    def __init__(self, message: str, path: str = "", field: str = "") -> None:
        super().__init__(message)
        self.path, self.field = path, field

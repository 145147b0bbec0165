"""Why a grammar is not served: what is raised where it is made, which is in the child process."""

from __future__ import annotations


class RefusalError(Exception):
    """The request's fault.

    Attributes:
        path: of the place within the field, "" for the whole.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path

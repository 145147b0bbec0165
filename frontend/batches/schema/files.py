"""A file as its routes show it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MAX_PAGE: Final = 10_000
PURPOSES: Final = ("batch", "batch_output")


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of a file; its bytes are another route's."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"
    status_details: None = None


class FilePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some files; after the last one there are more if has_more says so."""

    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is no longer kept."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True

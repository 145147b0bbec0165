"""The files of the page, read once and kept in memory, with what caches and browsers need to know of each."""

from __future__ import annotations

import gzip
import hashlib
from functools import cached_property
from pathlib import Path

STATIC = Path(__file__).with_name("static")
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
}


class Asset:
    """One file.

    Attributes:
        body: as it is in the package.
        media_type: by the ending of its name.
        etag: names its content, quoted as in the header.
    """

    def __init__(self, body: bytes, ending: str) -> None:
        """Args: ending with its dot."""
        self.body = body
        self.media_type = _MEDIA_TYPES[ending]
        self.etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'

    @cached_property
    def gzipped(self) -> bytes:
        """The body compressed, at its first use."""
        return gzip.compress(self.body, 6, mtime=0)


def load_assets(folder: Path = STATIC) -> dict[str, Asset]:
    """Return all files of a folder by their path within it, with slashes."""
    return {
        path.relative_to(folder).as_posix(): Asset(path.read_bytes(), path.suffix)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }

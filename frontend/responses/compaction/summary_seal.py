"""A summary ↔ the `encrypted_content` of a compaction item, which any frontend with the same key reads.

Nothing is hidden: the text is the client's own conversation. The seal shows whether it is still the text
that a model wrote. Without a key it finds damage only, since anybody can compute it.
"""

from __future__ import annotations

import base64
import hmac
from pathlib import Path

from splitserve.engine_core.errors import ConfigError, InvalidRequestError

MIN_KEY_BYTES = 32
MAX_KEY_BYTES = 4096
_VERSION = "splitserve-summary-1."
_SEAL_BYTES = 32


class SummarySeal:
    """Seals summaries and opens what it has sealed."""

    def __init__(self, key: bytes = b"") -> None:
        """Args: the key of this server's frontends, empty for none."""
        self._key = key

    def seal(self, summary: str) -> str:
        """Return a summary with its seal, as printable text."""
        text = summary.encode()
        return _VERSION + base64.urlsafe_b64encode(self._seal_of(text) + text).decode()

    def open(self, content: str, path: str) -> str:
        """Return the summary.

        Args:
            content: what a client holds.
            path: where in its request.

        Raises:
            InvalidRequestError: it was not sealed with this key, or was changed since.
        """
        try:
            data = base64.b64decode(content.removeprefix(_VERSION), b"-_", validate=True)
            seal, text = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
            if content.startswith(_VERSION) and hmac.compare_digest(seal, self._seal_of(text)):
                return text.decode()
        except ValueError:
            pass
        raise InvalidRequestError(
            f"{path} was not made by this server (with the key that it has now), or was changed since", path
        )

    def _seal_of(self, text: bytes) -> bytes:
        return hmac.digest(self._key, _VERSION.encode() + text, "sha256")


def read_seal(key_file: str) -> SummarySeal:
    """Return the seal of a server whose key is in a file; an empty path is no key.

    Raises:
        ConfigError: the file cannot be read, or is too short for a key or too long.
    """
    if not key_file:
        return SummarySeal()
    try:
        with Path(key_file).open("rb") as file:
            key = file.read(MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(f"--compaction-key-file cannot be read: {error}") from None
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ConfigError(
            f"--compaction-key-file {key_file} must hold {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, which "
            "nobody can guess: openssl rand -base64 48"
        )
    return SummarySeal(key)

"""The operator's API keys, kept as hashes only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from splitserve.engine_core.errors import ConfigError

MAX_KEY_CHARS = 512
# Shorter keys are accepted, because people use them, with a warning in the log: they can be guessed.
MIN_SAFE_KEY_CHARS = 16


def hash_key(key: str) -> str:
    """Return the SHA-256 of an API key, hex."""
    return hashlib.sha256(key.encode()).hexdigest()


def hash_keys(keys: Sequence[str], key_file: str, flag: str = "--api-key-file") -> tuple[str, ...]:
    """Hash the keys of the command line and of a file with one key per line (# starts a comment).

    Args:
        keys: of the command line.
        key_file: "" for none.
        flag: that names the file.

    Raises:
        ConfigError: the file cannot be read or holds no key, or a key has a wrong length or characters.
    """
    named = named_keys(keys, key_file, flag)
    flags = f"--api-key or {flag}" if flag == "--api-key-file" else flag
    for key in named:
        printable = key.isascii() and key.isprintable() and " " not in key
        if not printable or not 1 <= len(key) <= MAX_KEY_CHARS:
            raise ConfigError(
                f"a key of {flags} must be 1 to {MAX_KEY_CHARS} printable ASCII characters, no spaces"
            )
    return tuple(dict.fromkeys(hash_key(key) for key in named))


def count_short_keys(keys: Sequence[str], key_file: str) -> int:
    """Return how many of these keys are short enough to be guessed. Raises as hash_keys()."""
    return sum(len(key) < MIN_SAFE_KEY_CHARS for key in set(named_keys(keys, key_file)))


def named_keys(keys: Sequence[str], key_file: str, flag: str = "--api-key-file") -> Sequence[str]:
    """Return the keys of the command line and of the file, which a flag names.

    Raises:
        ConfigError: the file cannot be read or holds no key.
    """
    if not key_file:
        return keys
    try:
        lines = Path(key_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} cannot be read: {error}") from None
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not found:
        raise ConfigError(f"{flag} {key_file} holds no key")
    return [*keys, *found]

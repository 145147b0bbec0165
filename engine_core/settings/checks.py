"""How single values are checked; each error names the flag and what it accepts."""

from __future__ import annotations

import re

from splitserve.engine_core.errors import ConfigError


def check_address(flag: str, address: str) -> None:
    """Refuse anything but ipc://PATH and tcp://HOST:PORT.

    Raises:
        ConfigError: names the flag and the two forms.
    """
    # Abstract names (@) are open to every user of the machine: no directory protects them.
    if not re.fullmatch(r"ipc://[^@].{0,99}|tcp://(\*|\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}", address):
        raise ConfigError(
            f"{flag} must be ipc://PATH (at most 100 characters, the first not @) or tcp://HOST:PORT, "
            f"got {address!r}"
        )


def check_choice(flag: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices.

    Raises:
        ConfigError: names the flag and the choices.
    """
    if value not in choices:
        raise ConfigError(f"{flag} must be one of {', '.join(choices)}, got {value!r}")


def check_range(flag: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside low..high, NaN included.

    Raises:
        ConfigError: names the flag and the range.
    """
    if not low <= value <= high:
        raise ConfigError(f"{flag} must be from {low} to {high}, got {value}")

"""How are tokens drafted ahead? What --speculate and --speculative-config say."""

from __future__ import annotations

import msgspec

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.checks import check_range

MAX_SPECULATIVE_TOKENS = 8
MAX_LOOKUP_TOKENS = 16
METHODS = ("ngram", "grammar", "prediction")
_FLAG = "--speculative-config"
_NUM_SPECULATIVE_TOKENS = 4
_LOOKUP_MIN, _LOOKUP_MAX = 2, 5


class Speculation(msgspec.Struct, frozen=True):
    """How tokens are drafted ahead.

    Attributes:
        methods: who drafts, in this order: each goes on behind the drafts of those before it.
        num_speculative_tokens: most tokens per row and step.
        prompt_lookup_min: last tokens of a row that have to occur before.
        prompt_lookup_max: last tokens that are compared; the longest match counts.
    """

    methods: tuple[str, ...]
    num_speculative_tokens: int
    prompt_lookup_min: int
    prompt_lookup_max: int


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON object as it is given."""

    method: str | list[str] | None = None
    num_speculative_tokens: int | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None


def parse_speculation(speculate: str, text: str) -> Speculation | None:
    """Return how tokens are drafted; None if they are not.

    Args:
        speculate: a method, or "none".
        text: a JSON object, or "".

    Raises:
        ConfigError: names the field and what it takes.
    """
    if not text and speculate == "none":
        return None
    given = _decode(text or "{}")
    named = given.method or (speculate if speculate != "none" else [])
    methods = (named,) if isinstance(named, str) else tuple(named)
    if not methods:
        raise ConfigError(f'{_FLAG} must name a method, such as {{"method": "ngram"}}')
    for method in methods:
        if method not in METHODS:
            raise ConfigError(f"{_FLAG}: method must be one of {', '.join(METHODS)}, got {method!r}")
    if len(set(methods)) < len(methods):
        raise ConfigError(f"{_FLAG}: method names one of {', '.join(methods)} twice")
    if speculate not in ("none", *methods):
        raise ConfigError(f"--speculate {speculate} contradicts {_FLAG}, which says {', '.join(methods)}")
    return _with_defaults(methods, given)


def _decode(text: str) -> _Given:
    try:
        return msgspec.json.decode(text, type=_Given)
    # Beside msgspec's own errors: bytes that are no text, and objects within objects within objects.
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        fields = ", ".join(_Given.__struct_fields__)
        raise ConfigError(f"{_FLAG} must be a JSON object with the fields {fields}: {error}") from None


def _with_defaults(methods: tuple[str, ...], given: _Given) -> Speculation:
    count = given.num_speculative_tokens
    count = _NUM_SPECULATIVE_TOKENS if count is None else count
    check_range(f"{_FLAG}: num_speculative_tokens", count, 1, MAX_SPECULATIVE_TOKENS)
    low, high = given.prompt_lookup_min, given.prompt_lookup_max
    if high is None:
        high = max(_LOOKUP_MAX, low or 0)
    if low is None:
        low = min(_LOOKUP_MIN, high)
    check_range(f"{_FLAG}: prompt_lookup_max", high, 1, MAX_LOOKUP_TOKENS)
    check_range(f"{_FLAG}: prompt_lookup_min", low, 1, high)
    return Speculation(methods, count, low, high)

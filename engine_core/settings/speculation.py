"""How are tokens drafted ahead? What --speculate and --speculative-config say."""

from __future__ import annotations

import msgspec

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.checks import check_range

MAX_SPECULATIVE_TOKENS = 8
MAX_LOOKUP_TOKENS = 16
_DRAFT_MODEL, _EAGLE3, _MTP = "draft_model", "eagle3", "mtp"
METHODS = ("ngram", "grammar", "prediction", _DRAFT_MODEL, _EAGLE3, _MTP)
# What --speculate calls them, if it is shorter.
WORDS = {_DRAFT_MODEL: "draft", _EAGLE3: "eagle"}
# Those that read hidden states of the model.
HEADS = (_EAGLE3, _MTP)
# Those that draft with a checkpoint of their own.
_WITH_MODEL = (_DRAFT_MODEL, _EAGLE3)
# Those with a KV cache of their own.
_WITH_CACHE = (*_WITH_MODEL, _MTP)
CHOICES = tuple(WORDS.get(method, method) for method in METHODS)
_FLAG, _MODEL_FLAG = "--speculative-config", "--speculative-model"
_NUM_SPECULATIVE_TOKENS = 4
_LOOKUP_MIN, _LOOKUP_MAX = 2, 5


class Speculation(msgspec.Struct, frozen=True):
    """How tokens are drafted ahead.

    Attributes:
        methods: who drafts, in this order: each goes on behind the drafts of those before it.
        num_speculative_tokens: most tokens per row and step.
        prompt_lookup_min: last tokens of a row that have to occur before.
        prompt_lookup_max: last tokens that are compared; the longest match counts.
        model: of draft_model or eagle3: a directory, a GGUF file or a hub id; "" for the other methods.
    """

    methods: tuple[str, ...]
    num_speculative_tokens: int
    prompt_lookup_min: int
    prompt_lookup_max: int
    model: str = ""

    @property
    def model_method(self) -> str:
        """The method that drafts with layers of its own, in `model` or in the model itself; "" for none."""
        return next((method for method in self.methods if method in _WITH_CACHE), "")


class _Given(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON object as it is given."""

    method: str | list[str] | None = None
    num_speculative_tokens: int | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    model: str | None = None


def parse_speculation(speculate: str, text: str, model: str = "") -> Speculation | None:
    """Return how tokens are drafted; None if they are not.

    Args:
        speculate: one of CHOICES, or "none".
        text: a JSON object, or "".
        model: what --speculative-model says.

    Raises:
        ConfigError: names the field and what it takes.
    """
    if not text and not model and speculate == "none":
        return None
    given = _decode(text or "{}")
    if given.model and model and given.model != model:
        raise ConfigError(f"{_MODEL_FLAG} {model} contradicts {_FLAG}, which says {given.model}")
    model = model or given.model or ""
    chosen = next((method for method in METHODS if WORDS.get(method, method) == speculate), None)
    named = given.method or chosen or (_DRAFT_MODEL if model else [])
    methods = (named,) if isinstance(named, str) else tuple(named)
    if not methods:
        raise ConfigError(f'{_FLAG} must name a method, such as {{"method": "ngram"}}')
    for method in methods:
        if method not in METHODS:
            raise ConfigError(f"{_FLAG}: method must be one of {', '.join(METHODS)}, got {method!r}")
    if len(set(methods)) < len(methods):
        raise ConfigError(f"{_FLAG}: method names one of {', '.join(methods)} twice")
    if chosen not in (None, *methods):
        raise ConfigError(f"--speculate {speculate} contradicts {_FLAG}, which says {', '.join(methods)}")
    _check_fields(methods, given, model)
    return _with_defaults(methods, given, model)


def without_model(text: str) -> str:
    """Return what --speculative-config says, but for the model, which --speculative-model then names."""
    if not text:
        return text
    given = msgspec.structs.replace(_decode(text), model=None)
    return msgspec.json.encode(given).decode()


def _check_fields(methods: tuple[str, ...], given: _Given, model: str) -> None:
    """Refuse what the methods need and lack, or have no use for."""
    cached = [method for method in methods if method in _WITH_CACHE]
    if len(cached) > 1:
        raise ConfigError(f"{_FLAG}: method names {' and '.join(cached)}, of which one can have the cache")
    needing = [method for method in cached if method in _WITH_MODEL]
    if needing and not model:
        raise ConfigError(f"{_FLAG}: the method {needing[0]} needs a model, such as {_MODEL_FLAG} DIR")
    if not needing and model:
        said = ", ".join(methods)
        known = " or ".join(_WITH_MODEL)
        raise ConfigError(f"{_MODEL_FLAG} names the model of the method {known}, not of {said}")
    lookup = [name for name in ("prompt_lookup_min", "prompt_lookup_max") if getattr(given, name) is not None]
    if methods == tuple(cached) and lookup:
        raise ConfigError(f"{_FLAG}: {lookup[0]} is a field of the method ngram, not of {methods[0]}")


def _decode(text: str) -> _Given:
    try:
        return msgspec.json.decode(text, type=_Given)
    # Beside msgspec's own errors: bytes that are no text, and objects within objects within objects.
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        fields = ", ".join(_Given.__struct_fields__)
        raise ConfigError(f"{_FLAG} must be a JSON object with the fields {fields}: {error}") from None


def _with_defaults(methods: tuple[str, ...], given: _Given, model: str) -> Speculation:
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
    return Speculation(methods, count, low, high, model)

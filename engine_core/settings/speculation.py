"""How are tokens drafted ahead? What --speculate and --speculative-config say."""

from __future__ import annotations

import msgspec

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.checks import check_range
from splitserve.engine_core.settings.shared import QUANTIZATIONS

MAX_SPECULATIVE_TOKENS = 8
MAX_LOOKUP_TOKENS = 16
_DRAFT_MODEL, _EAGLE3, _MTP = "draft_model", "eagle3", "mtp"
_NGRAM, _SUFFIX = "ngram", "suffix"
METHODS = (_NGRAM, _SUFFIX, "grammar", "prediction", _DRAFT_MODEL, _EAGLE3, _MTP)
# What --speculate calls them, if it is shorter.
WORDS = {_DRAFT_MODEL: "draft", _EAGLE3: "eagle"}
# Those that draft with a checkpoint of their own.
_WITH_MODEL = (_DRAFT_MODEL, _EAGLE3)
# Those with a KV cache of their own.
_WITH_CACHE = (*_WITH_MODEL, _MTP)
NONE, AUTO = "none", "auto"
CHOICES = (AUTO, NONE, *(WORDS.get(method, method) for method in METHODS))
_FLAG, _MODEL_FLAG = "--speculative-config", "--speculative-model"
# Those of suffix follow from how much agrees.
_NUM_SPECULATIVE_TOKENS, _NUM_SUFFIX_TOKENS = 4, MAX_SPECULATIVE_TOKENS
_DEPTH = "suffix_decoding_max_tree_depth"
# Fields that some methods alone have begin with this.
_FIELDS_OF = {
    (_NGRAM,): "prompt_lookup_",
    (_SUFFIX,): "suffix_decoding_",
    _WITH_CACHE: "quantization",
}
MAX_SUFFIX_DEPTH, MAX_SUFFIX_ANSWERS, MAX_SUFFIX_FACTOR = 64, 100_000, 8.0
# Tokens that have to agree, at least: a depth that leaves no room for them would never draft.
_MIN_SUFFIX = 2
_LOOKUP_MIN, _LOOKUP_MAX = 2, 5


class SuffixRules(msgspec.Struct, frozen=True):
    """How the method suffix drafts.

    Attributes:
        max_depth: most tokens that are compared and drafted, together; more than are drafted by 2 at least.
        max_answers: finished answers that are kept; 0 for none.
        max_factor: most drafts for each token that agrees.
        min_share: of the places with the longest match, that have to go on like the drafts, 0..1.
    """

    max_depth: int = 24
    max_answers: int = 10_000
    max_factor: float = 1.0
    min_share: float = 0.1


class Speculation(msgspec.Struct, frozen=True):
    """How tokens are drafted ahead.

    Attributes:
        methods: who drafts, in this order: each goes on behind the drafts of those before it.
        num_speculative_tokens: most tokens per row and step.
        prompt_lookup_min: last tokens of a row that have to occur before.
        prompt_lookup_max: last tokens that are compared; the longest match counts.
        model: of draft_model or eagle3: a directory, a GGUF file or a hub id; "" for the other methods.
        suffixes: of the method suffix.
        quantization: of the draft model's or head's weights, one of QUANTIZATIONS; "" for that of the model.
    """

    methods: tuple[str, ...]
    num_speculative_tokens: int
    prompt_lookup_min: int
    prompt_lookup_max: int
    model: str = ""
    suffixes: SuffixRules = SuffixRules()
    quantization: str = ""

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
    quantization: str | None = None
    suffix_decoding_max_tree_depth: int | None = None
    suffix_decoding_max_cached_requests: int | None = None
    suffix_decoding_max_spec_factor: float | None = None
    suffix_decoding_min_token_prob: float | None = None


def parse_speculation(speculate: str, text: str, model: str = "") -> Speculation | None:
    """Return how tokens are drafted; None if they are not.

    Args:
        speculate: one of CHOICES; "none" holds whatever the others say.
        text: a JSON object, or "".
        model: what --speculative-model says.

    Raises:
        ConfigError: names the field and what it takes.
    """
    given = _decode(text or "{}")
    if speculate == NONE or (speculate == AUTO and not text and not model):
        return None
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
            raise ConfigError(
                f"{_FLAG}: method must be one of {', '.join(METHODS)}, got {method!r}{_meant(method)}"
            )
    if len(set(methods)) < len(methods):
        raise ConfigError(f"{_FLAG}: method names one of {', '.join(methods)} twice")
    if chosen not in (None, *methods):
        raise ConfigError(f"--speculate {speculate} contradicts {_FLAG}, which says {', '.join(methods)}")
    _check_fields(methods, given, model)
    return _with_defaults(methods, given, model)


def _meant(word: str) -> str:
    """What --speculate calls otherwise."""
    method = next((method for method, short in WORDS.items() if short == word), "")
    return f": --speculate {word} is {method} here" if method else ""


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
    for having, beginning in _FIELDS_OF.items():
        fields = [
            name
            for name in given.__struct_fields__
            if name.startswith(beginning) and getattr(given, name) is not None
        ]
        if fields and not set(having) & set(methods):
            said = ", ".join(methods)
            raise ConfigError(
                f"{_FLAG}: {fields[0]} is a field of the method {' or '.join(having)}, not of {said}"
            )
    if given.quantization not in (None, *QUANTIZATIONS):
        names = ", ".join(QUANTIZATIONS)
        raise ConfigError(f"{_FLAG}: quantization must be one of {names}, got {given.quantization!r}")


def _decode(text: str) -> _Given:
    try:
        return msgspec.json.decode(text, type=_Given)
    # Beside msgspec's own errors: bytes that are no text, and objects within objects within objects.
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        fields = ", ".join(_Given.__struct_fields__)
        raise ConfigError(f"{_FLAG} must be a JSON object with the fields {fields}: {error}") from None


def _with_defaults(methods: tuple[str, ...], given: _Given, model: str) -> Speculation:
    count, suffixes = given.num_speculative_tokens, _suffix_rules(given)
    if count is None:
        count = _NUM_SUFFIX_TOKENS if methods == (_SUFFIX,) else _NUM_SPECULATIVE_TOKENS
        count = min(count, suffixes.max_depth - _MIN_SUFFIX)
    check_range(f"{_FLAG}: num_speculative_tokens", count, 1, MAX_SPECULATIVE_TOKENS)
    check_range(f"{_FLAG}: {_DEPTH}", suffixes.max_depth, count + _MIN_SUFFIX, MAX_SUFFIX_DEPTH)
    low, high = given.prompt_lookup_min, given.prompt_lookup_max
    if high is None:
        high = max(_LOOKUP_MAX, low or 0)
    if low is None:
        low = min(_LOOKUP_MIN, high)
    check_range(f"{_FLAG}: prompt_lookup_max", high, 1, MAX_LOOKUP_TOKENS)
    check_range(f"{_FLAG}: prompt_lookup_min", low, 1, high)
    return Speculation(methods, count, low, high, model, suffixes, given.quantization or "")


def _suffix_rules(given: _Given) -> SuffixRules:
    depth, answers = given.suffix_decoding_max_tree_depth, given.suffix_decoding_max_cached_requests
    factor, share = given.suffix_decoding_max_spec_factor, given.suffix_decoding_min_token_prob
    default = SuffixRules()
    rules = SuffixRules(
        default.max_depth if depth is None else depth,
        default.max_answers if answers is None else answers,
        default.max_factor if factor is None else factor,
        default.min_share if share is None else share,
    )
    check_range(f"{_FLAG}: {_DEPTH}", rules.max_depth, 1 + _MIN_SUFFIX, MAX_SUFFIX_DEPTH)
    check_range(f"{_FLAG}: suffix_decoding_max_cached_requests", rules.max_answers, 0, MAX_SUFFIX_ANSWERS)
    check_range(f"{_FLAG}: suffix_decoding_max_spec_factor", rules.max_factor, 0.0, MAX_SUFFIX_FACTOR)
    check_range(f"{_FLAG}: suffix_decoding_min_token_prob", rules.min_share, 0.0, 1.0)
    return rules

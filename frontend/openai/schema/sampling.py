"""Request fields to SamplingParams: client's value, else the checkpoint's, else OpenAI's default."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_SEED, RepetitionDetection
from splitserve.frontend.openai.schema.fields import INT64_MIN, GenerationFields, RepetitionOptions
from splitserve.frontend.openai.schema.structured import output_rule

T = TypeVar("T")

NO_DEFAULTS = SamplingDefaults()
MAX_MAX_TOKENS = 2**31 - 1
MAX_NAMED_KEYS = 5


class ServedLimits(NamedTuple):
    """What a request may ask of a model as it is served here.

    Attributes:
        vocab_size: valid token ids are below it.
        max_logprobs: most alternatives per token.
    """

    vocab_size: int
    max_logprobs: int


def make_sampling_params(
    body: GenerationFields,
    defaults: SamplingDefaults,
    limits: ServedLimits,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Build and check the parameters of one request.

    Args:
        body: the request.
        defaults: of the checkpoint; they are for sampling, so a beam search takes none of them.
        limits: of the model here.
        max_tokens: as the endpoint's fields say; None for up to the context's end.
        logprobs: number of alternatives, None for none.
        prompt_logprobs: the same for the prompt.

    Raises:
        InvalidRequestError: names the field and its range.
    """
    if body.use_beam_search:
        defaults = NO_DEFAULTS
    params = SamplingParams(
        n=_first(body.n, None, 1),
        temperature=_first(body.temperature, defaults.temperature, 1.0),
        top_p=_first(body.top_p, defaults.top_p, 1.0),
        top_k=_first(body.top_k, defaults.top_k, 0),
        min_p=_first(body.min_p, defaults.min_p, 0.0),
        presence_penalty=_first(body.presence_penalty, None, 0.0),
        frequency_penalty=_first(body.frequency_penalty, None, 0.0),
        repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
        seed=_seed(body.seed),
        max_tokens=max_tokens,
        min_tokens=_first(body.min_tokens, None, 0),
        stop=_stop_strings(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(body.logit_bias),
        skip_special_tokens=_first(body.skip_special_tokens, None, True),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        bad_words=tuple(body.bad_words or ()),
        logprob_token_ids=tuple(body.logprob_token_ids or ()),
        repetition_detection=_repetition(body.repetition_detection),
        use_beam_search=bool(body.use_beam_search),
        best_of=body.best_of,
        length_penalty=_first(body.length_penalty, None, 1.0),
        early_stopping=_first(body.early_stopping, None, False),
        structured_outputs=output_rule(body.response_format, body.structured_outputs).structured,
    )
    params.validate(limits.vocab_size, limits.max_logprobs)
    return params


def fit_max_tokens(
    asked: int | None,
    default: int | None,
    num_prompt_tokens: int,
    max_model_len: int,
    name: str = "max_tokens",
    what: str = "prompt",
) -> int:
    """Return how many tokens may be generated after a prompt.

    Args:
        asked: the client's bound, None if it set none.
        default: the endpoint's bound for clients that set none; None for all the room there is.
        num_prompt_tokens: what the prompt takes.
        max_model_len: what there is.
        name: of the field that asked.
        what: the prompt is made of.

    Raises:
        ContextLengthError: the prompt leaves no room, or not the room that was asked for.
        InvalidRequestError: no model has so much room.
    """
    if asked is not None and asked > MAX_MAX_TOKENS:
        raise InvalidRequestError(f"{name} must be at most {MAX_MAX_TOKENS}", name)
    room = max_model_len - num_prompt_tokens
    # max_tokens 0 still runs the prompt, which takes the place of one token.
    if room >= max(1, asked or 1):
        return asked if asked is not None else min(room, default or room)
    param = name if asked is not None and room > 0 else None
    raise ContextLengthError.of(max_model_len, num_prompt_tokens, asked, param, what)


def _first(value: T | None, default: T | None, fallback: T) -> T:
    if value is not None:
        return value
    return default if default is not None else fallback


def _seed(seed: int | None) -> int | None:
    if seed is None:
        return None
    if not INT64_MIN <= seed <= MAX_SEED:
        raise InvalidRequestError(f"seed must be an integer from {INT64_MIN} to {MAX_SEED}", "seed")
    return seed % (MAX_SEED + 1)


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _repetition(options: RepetitionOptions | None) -> RepetitionDetection | None:
    if options is None:
        return None
    return RepetitionDetection(options.max_pattern_size, options.min_pattern_size, options.min_count)


def _logit_bias(entries: dict[str, float] | None) -> dict[int, float]:
    biases: dict[int, float] = {}
    wrong = [key for key in entries or {} if not (key.isascii() and key.isdigit() and len(key) <= 10)]
    if wrong:
        named = ", ".join(repr(key[:20]) for key in wrong[:MAX_NAMED_KEYS])
        more = f" and {len(wrong) - MAX_NAMED_KEYS} more" if len(wrong) > MAX_NAMED_KEYS else ""
        raise InvalidRequestError(
            f"logit_bias: keys must be token ids in decimal digits, got {named}{more}", "logit_bias"
        )
    for key, bias in (entries or {}).items():
        if int(key) in biases:
            raise InvalidRequestError(f"logit_bias holds token {int(key)} twice", "logit_bias")
        biases[int(key)] = bias
    return biases


def check_stream_fields(body: GenerationFields) -> None:
    """Check the fields that only fit one way of answering.

    Raises:
        InvalidRequestError: stream_options without stream, use_beam_search with it.
    """
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options requires stream: true", "stream_options")
    if body.use_beam_search and body.stream:
        raise InvalidRequestError(
            "stream must be false with use_beam_search: a beam search has no output before its end",
            "stream",
            "unsupported_parameter",
        )

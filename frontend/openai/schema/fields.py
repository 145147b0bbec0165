"""Fields that the generation endpoints share: how tokens are chosen, when they end, what comes back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from splitserve.engine_core.sampling_params import (
    MAX_BAD_WORD_BYTES,
    MAX_BAD_WORDS,
    MAX_LENGTH_PENALTY,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRING_BYTES,
    MAX_STOP_STRINGS,
)
from splitserve.engine_core.sequence_sampling import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_PATTERN_COUNT,
    MAX_PATTERN_SIZE,
    MAX_PRIORITY,
    MAX_SEED,
    MAX_STOP_TOKEN_IDS,
)
from splitserve.frontend.openai.schema.structured import ResponseFormat, StructuredOutputFields
from splitserve.frontend.text.truncation import TruncationSide

MAX_CACHE_SALT_CHARS = 128
MAX_MODEL_CHARS = 512
MAX_TIMEOUT_S = 7 * 86400
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


# For the OpenAPI document: SamplingParams.validate holds the ranges, and names them in its errors.
def ranged(low: float, high: float, text: str, *, above: bool = False) -> Meta:
    """Describe a number with its range; `above` leaves out the lower end."""
    bounds: dict[str, Any] = {"minimum": low, "maximum": high}
    return Meta(description=text, extra_json_schema=bounds | ({"exclusiveMinimum": low} if above else {}))


def listed(low: int, high: int) -> Meta:
    """Describe a list with its range of lengths."""
    return Meta(extra_json_schema={"minItems": low, "maxItems": high})


TokenId = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
# Characters here, bytes where it is enforced.
StopString = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_STOP_STRING_BYTES})]
BadWord = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_BAD_WORD_BYTES})]
TokenDigits = Annotated[str, Meta(extra_json_schema={"pattern": "^(0|[1-9][0-9]{0,8})$"})]
Bias = Annotated[float, Meta(extra_json_schema={"minimum": -100, "maximum": 100})]
LogitBias = Annotated[dict[TokenDigits, Bias], Meta(extra_json_schema={"maxProperties": MAX_LOGIT_BIAS})]


ModelName = Annotated[str, Meta(max_length=MAX_MODEL_CHARS, description="Default: the first model served.")]
CacheSalt = Annotated[
    str, Meta(min_length=1, max_length=MAX_CACHE_SALT_CHARS, description="Narrows prefix-cache sharing.")
]
Priority = Annotated[
    int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="Lower runs first under the priority policy.")
]


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside its chunks.

    Attributes:
        include_usage: one more chunk with the usage before [DONE].
        continuous_usage_stats: with include_usage, the usage so far in every chunk.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class RepetitionOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When an output ends because its last tokens are one pattern, several times over; sizes in tokens."""

    max_pattern_size: Annotated[int, ranged(1, MAX_PATTERN_SIZE, "Longest pattern looked for.")]
    min_pattern_size: Annotated[int, ranged(1, MAX_PATTERN_SIZE, "Shortest one.")] = 1
    min_count: Annotated[int, ranged(2, MAX_PATTERN_COUNT, "How often in a row it has to occur.")] = 2


class SharedFields(msgspec.Struct, frozen=True, kw_only=True):
    """Request fields of all of OpenAI's ways to generate; null means the same as leaving a field out."""

    temperature: Annotated[float | None, ranged(0, 2, "0 is greedy. Default: the checkpoint's, else 1.")] = (
        None
    )
    top_p: Annotated[
        float | None,
        ranged(0, 1, "Probability mass kept, above 0. Default: checkpoint's, else 1.", above=True),
    ] = None
    top_k: Annotated[int | None, ranged(-1, 2**31 - 1, "Tokens kept; 0 and -1 keep all.")] = None
    min_p: Annotated[float | None, ranged(0, 1, "Least probability relative to the most probable token.")] = (
        None
    )
    presence_penalty: Annotated[float | None, ranged(-2, 2, "Default 0.")] = None
    frequency_penalty: Annotated[float | None, ranged(-2, 2, "Default 0.")] = None
    repetition_penalty: Annotated[
        float | None, ranged(0, 10, "Above 0. Default: checkpoint's, else 1.", above=True)
    ] = None
    seed: Annotated[
        int | None,
        ranged(INT64_MIN, MAX_SEED, "Negative seeds count modulo 2**64. Default: random."),
    ] = None
    stop: Annotated[
        StopString | Annotated[list[StopString], listed(0, MAX_STOP_STRINGS)] | None,
        Meta(description=f"Up to {MAX_STOP_STRINGS} strings of 1 to 256 bytes that end the text."),
    ] = None
    stop_token_ids: Annotated[
        Annotated[list[TokenId], listed(0, MAX_STOP_TOKEN_IDS)] | None,
        Meta(description=f"Up to {MAX_STOP_TOKEN_IDS} token ids that end the request."),
    ] = None
    min_tokens: Annotated[int | None, ranged(0, 2**31 - 1, "No EOS and no stop before. Default 0.")] = None
    ignore_eos: bool | None = None
    logit_bias: Annotated[
        LogitBias | None,
        Meta(description=f"Token id to bias in -100..100, at most {MAX_LOGIT_BIAS} entries."),
    ] = None
    allowed_token_ids: Annotated[
        Annotated[list[TokenId], listed(1, MAX_ALLOWED_TOKEN_IDS)] | None,
        Meta(description=f"1 to {MAX_ALLOWED_TOKEN_IDS} ids; no other is sampled. EOS only if it is listed."),
    ] = None
    bad_words: Annotated[
        Annotated[list[BadWord], listed(0, MAX_BAD_WORDS)] | None,
        Meta(
            description=f"Up to {MAX_BAD_WORDS} strings of 1 to {MAX_BAD_WORD_BYTES} bytes that never appear."
        ),
    ] = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    timeout: Annotated[
        float | None,
        ranged(0, MAX_TIMEOUT_S, "Seconds after which the engine ends the request with 504.", above=True),
    ] = None
    queue_timeout: Annotated[
        float | None,
        ranged(
            0,
            MAX_TIMEOUT_S,
            "Seconds it may wait before it first runs, else 503. Default: the engine's.",
            above=True,
        ),
    ] = None
    request_id: Annotated[
        str | None,
        Meta(
            description="1 to 100 letters, digits and . _ : -; the header X-Request-Id takes precedence.",
            extra_json_schema={"pattern": "^[A-Za-z0-9._:-]{1,100}$"},
        ),
    ] = None


class GenerationFields(SharedFields, frozen=True, kw_only=True):
    """Request fields of completions and chat."""

    model: ModelName | None = None
    n: Annotated[int | None, ranged(1, MAX_N, "Completions per prompt. Default 1.")] = None
    logprob_token_ids: Annotated[
        Annotated[list[TokenId], listed(0, MAX_LOGPROB_TOKEN_IDS)] | None,
        Meta(
            description=f"Up to {MAX_LOGPROB_TOKEN_IDS} ids whose logprobs are returned too; needs logprobs."
        ),
    ] = None
    repetition_detection: Annotated[
        RepetitionOptions | None, Meta(description='Ends with finish_reason "repetition". Default: off.')
    ] = None
    response_format: Annotated[
        ResponseFormat | None, Meta(description="What the answer has to be. Default: any text.")
    ] = None
    structured_outputs: Annotated[
        StructuredOutputFields | None, Meta(description="The same in vLLM's words; not with response_format.")
    ] = None
    use_beam_search: Annotated[
        bool | None,
        Meta(description="Find the n outputs with the best scores instead of sampling; not in streams."),
    ] = None
    best_of: Annotated[
        int | None,
        ranged(1, MAX_N, "Number of beams of a beam search, at least n. Otherwise, and by default, n."),
    ] = None
    length_penalty: Annotated[
        float | None,
        ranged(
            -MAX_LENGTH_PENALTY,
            MAX_LENGTH_PENALTY,
            "Beam search: the score of an output is its logprobs' sum / length ** length_penalty. Default 1.",
        ),
    ] = None
    early_stopping: Annotated[
        bool | Literal["never"] | None,
        Meta(
            description="When a beam search that has found best_of outputs ends; true at once. Default false."
        ),
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        Meta(
            description="Keep this many tokens of a prompt, 1 to the context length; -1 leaves room for "
            "max_tokens.",
            extra_json_schema={"minimum": -1, "not": {"const": 0}},
        ),
    ] = None
    truncation_side: Annotated[
        TruncationSide | None, Meta(description="Which end of the prompt is truncated. Default left.")
    ] = None
    prompt_logprobs: Annotated[int | None, ranged(0, MAX_LOGPROBS, "Logprobs of the prompt's tokens.")] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: Annotated[
        bool | None,
        Meta(description='Write tokens of logprobs as "token_id:123". Default: as the server is set.'),
    ] = None

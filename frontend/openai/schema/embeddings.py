"""Request and response of POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from splitserve.frontend.openai.schema.fields import CacheSalt, ModelName, Priority, ranged
from splitserve.frontend.text.truncation import TruncationSide

# OpenAI's own limit.
MAX_INPUTS = 2048
# Wider than any model's vectors; each model has its own limit.
MAX_DIMENSIONS = 2**20


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors of one text or several."""

    input: Annotated[
        str | Annotated[list[str | int | list[int]], Meta(min_length=1)],
        Meta(
            description=f"A text, a list of token ids, or a list of up to {MAX_INPUTS} of either, not mixed."
        ),
    ]
    model: ModelName | None = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(description="Numbers, or their little-endian float32 in base64. Default float."),
    ] = None
    dimensions: Annotated[
        int | None, ranged(1, MAX_DIMENSIONS, "Elements kept, up to the model's. Default: all.")
    ] = None
    normalize: Annotated[
        bool | None,
        Meta(description="Bring vectors to length 1. Default: as the checkpoint says, else true."),
    ] = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="Default true: BOS, EOS and the like for text.")
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        Meta(
            description="Keep this many tokens of an input, 1 to the context length; -1 as many as fit.",
            extra_json_schema={"minimum": -1, "not": {"const": 0}},
        ),
    ] = None
    truncation_side: Annotated[
        TruncationSide | None, Meta(description="Which end of the input is truncated. Default left.")
    ] = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None


class Embedding(msgspec.Struct, frozen=True):
    """The vector of one input."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """OpenAI's usage object of embeddings."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, in the order of the inputs."""

    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"

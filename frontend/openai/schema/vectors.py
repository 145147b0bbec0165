"""Requests and responses of POST /v1/embeddings, /rerank, /score, /classify and /pooling."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from splitserve.frontend.openai.schema.fields import CacheSalt, ModelName, Priority, listed, ranged
from splitserve.frontend.text.truncation import TruncationSide

# OpenAI's own limit.
MAX_INPUTS = 2048
# Wider than any model's vectors; each model has its own limit.
MAX_DIMENSIONS = 2**20

Text = Annotated[str, Meta(extra_json_schema={"minLength": 1})]
Texts = Annotated[list[Text], Meta(min_length=1), listed(1, MAX_INPUTS)]


Instruction = Annotated[
    str | None, Meta(description="What a model that is told so judges by. Default: its own.")
]


class VectorFields(msgspec.Struct, frozen=True, kw_only=True):
    """Request fields of all that vectors are made for."""

    model: ModelName | None = None
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


Inputs = Annotated[
    str | Annotated[list[str | int | list[int]], Meta(min_length=1)],
    Meta(description=f"A text, a list of token ids, or a list of up to {MAX_INPUTS} of either, not mixed."),
]


EncodingFormat = Annotated[
    Literal["float", "base64"] | None,
    Meta(description="Numbers, or their little-endian float32 in base64. Default float."),
]


class EmbeddingRequest(VectorFields, frozen=True, kw_only=True):
    """Vectors of one text or several."""

    input: Inputs
    encoding_format: EncodingFormat = None
    dimensions: Annotated[
        int | None, ranged(1, MAX_DIMENSIONS, "Elements kept, up to the model's. Default: all.")
    ] = None
    normalize: Annotated[
        bool | None,
        Meta(description="Bring vectors to length 1. Default: as the checkpoint says, else true."),
    ] = None


class Embedding(msgspec.Struct, frozen=True):
    """The vector of one input."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class VectorUsage(msgspec.Struct, frozen=True):
    """OpenAI's usage object where nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, in the order of the inputs."""

    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: VectorUsage
    object: Literal["list"] = "list"


class DocumentFields(msgspec.Struct, frozen=True):
    """A document as an object."""

    text: Text


class RerankRequest(VectorFields, frozen=True, kw_only=True):
    """Order documents by how near they are to a query: Jina's and Cohere's fields."""

    query: Text
    documents: Annotated[
        Annotated[list[Text | DocumentFields], Meta(min_length=1), listed(1, MAX_INPUTS)],
        Meta(description=f"1 to {MAX_INPUTS} texts, or objects with one."),
    ]
    instruction: Instruction = None
    top_n: Annotated[int | None, ranged(1, 2**31 - 1, "Results returned, the best. Default: all.")] = None
    return_documents: Annotated[bool | None, Meta(description="Default true.")] = None


class RankedDocument(msgspec.Struct, frozen=True):
    """A document of the request."""

    text: str


class RerankResult(msgspec.Struct, frozen=True):
    """One document: its place in the request, and its score: of vectors the cosine, -1 to 1."""

    index: int
    relevance_score: float
    document: RankedDocument | None = None


class RerankResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, best first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: VectorUsage


class ScoreRequest(VectorFields, frozen=True, kw_only=True):
    """Compare texts: one with one or several, or two lists pair by pair."""

    text_1: Annotated[Text | Texts, Meta(description="One text, or as many as text_2.")]
    text_2: Annotated[Text | Texts, Meta(description=f"One text, or 1 to {MAX_INPUTS}.")]
    instruction: Instruction = None


class Score(msgspec.Struct, frozen=True):
    """The score of two texts: of vectors their cosine, -1 to 1."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, in the order of the texts."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: VectorUsage
    object: Literal["list"] = "list"


class ClassifyRequest(VectorFields, frozen=True, kw_only=True):
    """Classify one text or several."""

    input: Inputs


class Classification(msgspec.Struct, frozen=True):
    """The most probable label of an input, and the probability of each label in the model's order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, in the order of the inputs."""

    id: str
    created: int
    model: str
    data: list[Classification]
    usage: VectorUsage
    object: Literal["list"] = "list"


class PoolingRequest(VectorFields, frozen=True, kw_only=True):
    """What a model makes of one text or several: vLLM's fields."""

    input: Inputs
    task: Annotated[
        Literal["embed", "classify", "token_embed"] | None,
        Meta(
            description="embed: the vector of an input. classify: the probability of each label. "
            "token_embed: the vector of each token. Default: classify if the model has labels, else embed."
        ),
    ] = None
    encoding_format: EncodingFormat = None
    dimensions: Annotated[
        int | None, ranged(1, MAX_DIMENSIONS, "Of embed: elements kept, up to the model's. Default: all.")
    ] = None
    normalize: Annotated[
        bool | None,
        Meta(description="Bring vectors to length 1. Default: as for embeddings; those of tokens: false."),
    ] = None


class PooledData(msgspec.Struct, frozen=True):
    """What came of one input; of its tokens a list for each, or all of them in one text."""

    index: int
    data: list[float | list[float]] | str
    object: Literal["pooling"] = "pooling"


class PoolingResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, in the order of the inputs."""

    id: str
    created: int
    model: str
    data: list[PooledData]
    usage: VectorUsage
    object: Literal["list"] = "list"

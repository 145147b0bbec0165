"""POST /rerank and /score: how near texts are to each other, as the cosine of their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.http.connection.disconnect import ClientWatch
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.openai.context import ApiContext, json_response, make_head, read_struct
from splitserve.frontend.openai.models import find_model
from splitserve.frontend.openai.prompts import encode_prompts
from splitserve.frontend.openai.schema.unsupported import known_beside
from splitserve.frontend.openai.schema.vectors import (
    MAX_INPUTS,
    RankedDocument,
    RerankRequest,
    RerankResponse,
    RerankResult,
    Score,
    ScoreRequest,
    ScoreResponse,
    VectorFields,
    VectorUsage,
)
from splitserve.frontend.openai.vectors.vector_run import VectorInput, VectorRun, vector_encoder
from splitserve.frontend.text.vectors import check_embeds, finished_vector

rerank_decoder = BodyDecoder(RerankRequest, known_beside({}))
score_decoder = BodyDecoder(ScoreRequest, known_beside({}))


async def rerank(context: ApiContext, request: Request) -> Response:
    """Order documents by how near they are to a query.

    Raises:
        SplitServeError: app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = await read_struct(context, request, rerank_decoder, {})
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    _check_count("documents", texts)
    if body.top_n is not None and body.top_n < 1:
        raise InvalidRequestError(f"top_n must be an integer of at least 1, got {body.top_n}", "top_n")
    model = await _embedder(context, body)
    head = make_head(request, "rerank-", None, body.model, model)
    vectors, usage = await _vectors(
        context, request, model, body, head.id, {"query": body.query, "documents": texts}
    )
    scores = vectors[1:] @ vectors[0]
    # Equal ones stay in the order of the documents.
    order = np.argsort(-scores, kind="stable")[: body.top_n or len(texts)].tolist()
    shown = body.return_documents is not False
    results = [RerankResult(i, float(scores[i]), RankedDocument(texts[i]) if shown else None) for i in order]
    return json_response(RerankResponse(id=head.id, model=head.model, results=results, usage=usage))


async def score(context: ApiContext, request: Request) -> Response:
    """Compare a text with one or several, or two lists pair by pair.

    Raises:
        SplitServeError: app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = await read_struct(context, request, score_decoder, {})
    first, second = ([text] if isinstance(text, str) else text for text in (body.text_1, body.text_2))
    _check_count("text_1", first)
    _check_count("text_2", second)
    if len(first) not in (1, len(second)):
        raise InvalidRequestError(
            f"text_1 must be one text, or as many as text_2, got {len(first)} and {len(second)}", "text_1"
        )
    model = await _embedder(context, body)
    head = make_head(request, "score-", None, body.model, model)
    vectors, usage = await _vectors(
        context, request, model, body, head.id, {"text_1": body.text_1, "text_2": body.text_2}
    )
    scores = (vectors[: len(first)] * vectors[len(first) :]).sum(axis=1)
    data = [Score(i, float(value)) for i, value in enumerate(scores)]
    return json_response(
        ScoreResponse(id=head.id, created=head.created, model=head.model, data=data, usage=usage)
    )


async def _embedder(context: ApiContext, body: VectorFields) -> ServedModel:
    model = await find_model(context, body.model)
    check_embeds(model.names[0], model.info.embedding_size)
    return model


def _check_count(name: str, texts: Sequence[str]) -> None:
    if len(texts) > MAX_INPUTS:
        raise InvalidRequestError(f"{name} must contain at most {MAX_INPUTS} texts, got {len(texts)}", name)


async def _vectors(
    context: ApiContext,
    request: Request,
    model: ServedModel,
    body: VectorFields,
    answer_id: str,
    fields: dict[str, str | list[str]],
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], VectorUsage]:
    """Return vectors of length 1, float64 [n, D], of the texts of some fields in order, and their tokens."""
    encoder = vector_encoder(context, model, body)
    inputs: list[VectorInput] = []
    async with ClientWatch(request.receive):
        for name, texts in fields.items():
            given: str | list[str | int | list[int]] = texts if isinstance(texts, str) else [*texts]
            prompts = await encode_prompts(given, encoder, name, MAX_INPUTS)
            inputs += [
                VectorInput(name if isinstance(texts, str) else f"{name}[{i}]", prompt.token_ids)
                for i, prompt in enumerate(prompts)
            ]
        found = await VectorRun(context, request, model, body, answer_id).collect(inputs)
    size = model.info.embedding_size
    vectors = np.stack([finished_vector(values, size, normalizes=True) for values in found])
    num_tokens = sum(len(each.token_ids) for each in inputs)
    return vectors.astype(np.float64), VectorUsage(num_tokens, num_tokens)

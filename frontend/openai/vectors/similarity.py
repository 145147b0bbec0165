"""POST /rerank and /score: how near texts are to each other, by a cross-encoder or by their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.http.connection.disconnect import ClientWatch
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.openai.context import (
    ApiContext,
    ResponseHead,
    json_response,
    make_head,
    read_struct,
)
from splitserve.frontend.openai.models import find_model
from splitserve.frontend.openai.prompts import encode_pairs, encode_prompts
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
    VectorUsage,
)
from splitserve.frontend.openai.vectors.vector_run import (
    VectorInput,
    VectorRun,
    named_inputs,
    vector_encoder,
)
from splitserve.frontend.text.pooling.labels import is_cross_encoder, score_of
from splitserve.frontend.text.pooling.vectors import cosines

rerank_decoder = BodyDecoder(RerankRequest, known_beside({}))
score_decoder = BodyDecoder(ScoreRequest, known_beside({}))

Fields = dict[str, str | list[str]]


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
    run = await _Comparison.begin(context, request, body, "rerank-")
    scores, usage = await run.compare({"query": body.query, "documents": texts})
    # Equal ones stay in the order of the documents.
    order = np.argsort(-scores, kind="stable")[: body.top_n or len(texts)].tolist()
    shown = body.return_documents is not False
    results = [RerankResult(i, float(scores[i]), RankedDocument(texts[i]) if shown else None) for i in order]
    return json_response(RerankResponse(id=run.head.id, model=run.head.model, results=results, usage=usage))


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
    run = await _Comparison.begin(context, request, body, "score-")
    scores, usage = await run.compare({"text_1": body.text_1, "text_2": body.text_2})
    data = [Score(i, float(value)) for i, value in enumerate(scores)]
    head = run.head
    return json_response(
        ScoreResponse(id=head.id, created=head.created, model=head.model, data=data, usage=usage)
    )


def _check_count(name: str, texts: Sequence[str]) -> None:
    if len(texts) > MAX_INPUTS:
        raise InvalidRequestError(f"{name} must contain at most {MAX_INPUTS} texts, got {len(texts)}", name)


class _Comparison:
    """The texts of one request on their way to scores."""

    def __init__(
        self,
        context: ApiContext,
        request: Request,
        body: RerankRequest | ScoreRequest,
        model: ServedModel,
        head: ResponseHead,
    ) -> None:
        self._context, self._request, self._body, self._model = context, request, body, model
        self._reads_both = is_cross_encoder(model.names[0], model.info)
        self.head = head

    @classmethod
    async def begin(
        cls, context: ApiContext, request: Request, body: RerankRequest | ScoreRequest, prefix: str
    ) -> _Comparison:
        """Find the model that compares.

        Raises:
            InvalidRequestError: there is none, or it compares no texts.
            EngineUnavailableError: no engine is ready.
        """
        model = await find_model(context, body.model)
        return cls(context, request, body, model, make_head(request, prefix, None, body.model, model))

    async def compare(self, fields: Fields) -> tuple[npt.NDArray[np.float64], VectorUsage]:
        """Return a score for each text of the second field, float64 [n], and the tokens of all.

        Args:
            fields: two, by their names in the request; the first has one text or as many as the second.
        """
        async with ClientWatch(self._request.receive):
            inputs = await (self._pairs(fields) if self._reads_both else self._texts(fields))
            run = VectorRun(self._context, self._request, self._model, self._body, self.head.id)
            found = await run.collect(inputs)
        num_tokens = sum(len(each.token_ids) for each in inputs)
        scores = self._scores(found) if self._reads_both else self._cosines(fields, found)
        return scores, VectorUsage(num_tokens, num_tokens)

    async def _pairs(self, fields: Fields) -> list[VectorInput]:
        (_, first), (name, second) = fields.items()
        encoder = vector_encoder(self._context, self._model, self._body, "right")
        firsts = [first] if isinstance(first, str) else first
        seconds = [second] if isinstance(second, str) else second
        if len(firsts) == 1:
            firsts = firsts * len(seconds)
        pairs = list(zip(firsts, seconds, strict=True))
        prompts = await encode_pairs(pairs, encoder, name, self._body.instruction)
        return [
            VectorInput(name if isinstance(second, str) else f"{name}[{i}]", each.token_ids, each.second_at)
            for i, each in enumerate(prompts)
        ]

    async def _texts(self, fields: Fields) -> list[VectorInput]:
        if self._body.instruction is not None:
            raise InvalidRequestError("instruction: the model takes none", "instruction")
        encoder = vector_encoder(self._context, self._model, self._body)
        inputs: list[VectorInput] = []
        for name, texts in fields.items():
            given: str | list[str | int | list[int]] = texts if isinstance(texts, str) else [*texts]
            prompts = await encode_prompts(given, encoder, name, MAX_INPUTS)
            inputs += named_inputs(name, prompts, is_list=not isinstance(texts, str))
        return inputs

    def _scores(self, found: list[bytes]) -> npt.NDArray[np.float64]:
        return np.array([score_of(values, self._model.info) for values in found])

    def _cosines(self, fields: Fields, found: list[bytes]) -> npt.NDArray[np.float64]:
        size = self._model.info.embedding_size
        first = next(iter(fields.values()))
        return cosines(found, 1 if isinstance(first, str) else len(first), size)

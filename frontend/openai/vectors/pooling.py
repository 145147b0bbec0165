"""POST /pooling: what a model makes of texts: vectors of them or their tokens, or probabilities of labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.http.connection.disconnect import ClientWatch
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.openai.context import ApiContext, json_answer, make_head, read_struct
from splitserve.frontend.openai.models import find_model
from splitserve.frontend.openai.prompts import encode_prompts
from splitserve.frontend.openai.schema.unsupported import known_beside
from splitserve.frontend.openai.schema.vectors import (
    MAX_INPUTS,
    PooledData,
    PoolingRequest,
    PoolingResponse,
    VectorUsage,
)
from splitserve.frontend.openai.vectors.vector_run import VectorInput, VectorRun, named_inputs, vector_encoder
from splitserve.frontend.text.pooling.labels import check_classifies, probabilities_of
from splitserve.frontend.text.pooling.vectors import (
    as_base64,
    check_dimensions,
    check_embeds,
    check_embeds_tokens,
    finished_vector,
    token_vectors,
)

decoder = BodyDecoder(PoolingRequest, known_beside({}))

Finish = Callable[[bytes], npt.NDArray[np.floating]]


async def pool(context: ApiContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = await read_struct(context, request, decoder, {})
    model = await find_model(context, body.model)
    finish, of_tokens = _finish(body, model), body.task == "token_embed"
    head = make_head(request, "pool-", None, body.model, model)
    encoder = vector_encoder(context, model, body)
    async with ClientWatch(request.receive):
        prompts = await encode_prompts(body.input, encoder, "input", MAX_INPUTS)
        inputs = named_inputs("input", prompts, is_list=len(prompts) > 1)
        if of_tokens:
            _check_size(inputs, model.info.embedding_size, context.config.max_answer_values)
        run = VectorRun(context, request, model, body, head.id, of_tokens=of_tokens)
        found = await run.collect(inputs)
    pieces = JsonPieces()

    def data() -> Iterator[PooledData]:
        for index, values in enumerate(found):
            made = finish(values)
            yield PooledData(
                index,
                as_base64(made) if body.encoding_format == "base64" else made.tolist(),
            )

    num_tokens = sum(len(each.token_ids) for each in inputs)
    answer = PoolingResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        data=pieces.long_list(data(), len(found), max(len(values) // 4 for values in found)),
        usage=VectorUsage(num_tokens, num_tokens),
    )
    return json_answer(context, pieces, answer)


def _finish(body: PoolingRequest, model: ServedModel) -> Finish:
    """Return what makes the answer of an input's float32 column.

    Raises:
        InvalidRequestError: the model does something else, or a field is out of range or without effect.
    """
    name, info = model.names[0], model.info
    task = body.task or ("classify" if info.labels else "embed")
    if task != "embed" and body.dimensions is not None:
        raise InvalidRequestError("dimensions requires task: embed", "dimensions")
    if task == "classify":
        check_classifies(name, info)
        if body.normalize is not None:
            raise InvalidRequestError("normalize requires a task that makes vectors", "normalize")
        return lambda values: probabilities_of(values, info)
    if task == "token_embed":
        check_embeds_tokens(name, info)
        return lambda values: token_vectors(values, info.embedding_size, normalizes=bool(body.normalize))
    check_embeds(name, info)
    dimensions = check_dimensions(body.dimensions, info.embedding_size)
    normalizes = info.normalizes if body.normalize is None else body.normalize
    return lambda values: finished_vector(values, dimensions, normalizes=normalizes)


def _check_size(inputs: Sequence[VectorInput], size: int, limit: int) -> None:
    num_values = size * sum(len(each.token_ids) for each in inputs)
    if num_values > limit:
        raise InvalidRequestError(
            f"the response would contain {num_values} values, more than {limit} (--max-answer-values): "
            f"each token has {size}; ask for fewer or shorter inputs",
            "input",
        )

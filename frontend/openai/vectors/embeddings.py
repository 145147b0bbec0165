"""POST /v1/embeddings: the vectors of texts."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.http.connection.disconnect import ClientWatch
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.openai.context import ApiContext, json_answer, make_head, read_struct
from splitserve.frontend.openai.models import find_model
from splitserve.frontend.openai.prompts import encode_prompts
from splitserve.frontend.openai.schema.unsupported import known_beside
from splitserve.frontend.openai.schema.vectors import (
    MAX_INPUTS,
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    VectorUsage,
)
from splitserve.frontend.openai.vectors.vector_run import VectorRun, named_inputs, vector_encoder
from splitserve.frontend.text.pooling.vectors import (
    as_base64,
    check_dimensions,
    check_embeds,
    finished_vector,
)

decoder = BodyDecoder(EmbeddingRequest, known_beside({}))


async def create_embeddings(context: ApiContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = await read_struct(context, request, decoder, {})
    model = await find_model(context, body.model)
    check_embeds(model.names[0], model.info)
    dimensions = check_dimensions(body.dimensions, model.info.embedding_size)
    head = make_head(request, "embd-", None, body.model, model)
    encoder = vector_encoder(context, model, body)
    async with ClientWatch(request.receive):
        prompts = await encode_prompts(body.input, encoder, "input", MAX_INPUTS)
        inputs = named_inputs("input", prompts, is_list=len(prompts) > 1)
        vectors = await VectorRun(context, request, model, body, head.id).collect(inputs)
    normalizes = model.info.normalizes if body.normalize is None else body.normalize
    pieces = JsonPieces()

    def embeddings() -> Iterator[Embedding]:
        for index, values in enumerate(vectors):
            vector = finished_vector(values, dimensions, normalizes=normalizes)
            yield Embedding(index, as_base64(vector) if body.encoding_format == "base64" else vector.tolist())

    num_tokens = sum(len(each.token_ids) for each in inputs)
    answer = EmbeddingResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        data=pieces.long_list(embeddings(), len(vectors), dimensions),
        usage=VectorUsage(num_tokens, num_tokens),
    )
    return json_answer(context, pieces, answer)

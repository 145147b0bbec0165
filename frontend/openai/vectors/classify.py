"""POST /classify: the probability of each label of a text."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.http.connection.disconnect import ClientWatch
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.openai.context import ApiContext, json_response, make_head, read_struct
from splitserve.frontend.openai.models import find_model
from splitserve.frontend.openai.prompts import encode_prompts
from splitserve.frontend.openai.schema.unsupported import known_beside
from splitserve.frontend.openai.schema.vectors import (
    MAX_INPUTS,
    Classification,
    ClassifyRequest,
    ClassifyResponse,
    VectorUsage,
)
from splitserve.frontend.openai.vectors.vector_run import VectorRun, named_inputs, vector_encoder
from splitserve.frontend.text.pooling.labels import check_classifies, probabilities_of

decoder = BodyDecoder(ClassifyRequest, known_beside({}))


async def classify(context: ApiContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = await read_struct(context, request, decoder, {})
    model = await find_model(context, body.model)
    check_classifies(model.names[0], model.info)
    head = make_head(request, "classify-", None, body.model, model)
    encoder = vector_encoder(context, model, body)
    async with ClientWatch(request.receive):
        prompts = await encode_prompts(body.input, encoder, "input", MAX_INPUTS)
        inputs = named_inputs("input", prompts, is_list=len(prompts) > 1)
        found = await VectorRun(context, request, model, body, head.id).collect(inputs)
    data = []
    for i, values in enumerate(found):
        probs = probabilities_of(values, model.info)
        data.append(Classification(i, model.info.labels[int(probs.argmax())], probs.tolist(), len(probs)))
    num_tokens = sum(len(each.token_ids) for each in inputs)
    usage = VectorUsage(num_tokens, num_tokens)
    return json_response(
        ClassifyResponse(id=head.id, created=head.created, model=head.model, data=data, usage=usage)
    )

"""POST /v1/responses/input_tokens: how many tokens would the input of a request have?"""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.openai.chat import chat_prompt
from splitserve.frontend.openai.context import json_response, read_struct
from splitserve.frontend.openai.schema.server_defaults import with_server_defaults
from splitserve.frontend.responses.context import ResponsesContext
from splitserve.frontend.responses.kept.conversation import earlier_items
from splitserve.frontend.responses.responses import decoder
from splitserve.frontend.responses.schema.refused import REFUSED_RESPONSES
from splitserve.frontend.responses.translation import chat_request, own_words


class InputTokens(msgspec.Struct, frozen=True):
    """The answer."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


async def count_input_tokens(context: ResponsesContext, request: Request) -> Response:
    """Answer how many tokens the prompt of a request has, which is encoded as if it ran.

    Raises:
        SplitServeError: as create_response(), but the prompt need not leave room for an answer.
    """
    body = await read_struct(context.api, request, decoder, REFUSED_RESPONSES)
    earlier = await earlier_items(context, request, body)
    with own_words():
        chat = with_server_defaults(chat_request(body, context.seal, earlier.given), context.api.config)
        prompt = await chat_prompt(context.api, chat)
    return json_response(InputTokens(len(prompt.token_ids)))

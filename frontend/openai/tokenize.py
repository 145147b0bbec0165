"""POST /tokenize and /detokenize: the tokenizer and template of a served model, without running it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.slices import SLICE_VALUES
from splitserve.frontend.openai.context import ApiContext, json_answer, read_struct
from splitserve.frontend.openai.models import find_model
from splitserve.frontend.openai.prompts import chat_options
from splitserve.frontend.openai.schema.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from splitserve.frontend.openai.schema.tools import check_tools, template_tools
from splitserve.frontend.openai.schema.unsupported import REFUSED_TOKENIZE, known_beside
from splitserve.frontend.text.chat.messages import template_messages
from splitserve.frontend.text.chat.thinking import effort_variables
from splitserve.frontend.text.model_assets import ModelAssets
from splitserve.frontend.text.prompts import PromptEncoder, check_token_ids
from splitserve.frontend.text.tokenizer import Tokenizer

tokenize_decoder = BodyDecoder(TokenizeRequest, known_beside(REFUSED_TOKENIZE))
detokenize_decoder = BodyDecoder(DetokenizeRequest, known_beside({}))


async def tokenize(context: ApiContext, request: Request) -> Response:
    """Answer POST /tokenize.

    Raises:
        SplitServeError: as read_struct() and the encoders; not exactly one of prompt and messages, or tools
            that are wrong or without messages.
    """
    body = await read_struct(context, request, tokenize_decoder, REFUSED_TOKENIZE)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("exactly one of prompt and messages must be given", "prompt")
    assets = (await find_model(context, body.model)).assets
    if body.tools and body.messages is None:
        raise InvalidRequestError("tools are for messages, not for a prompt", "tools")
    token_ids = await _encode(context, body, assets)
    pieces, count, names = JsonPieces(), len(token_ids), None
    if body.return_token_strs:
        tokenizer = assets.tokenizer
        names = pieces.long_list((tokenizer.token_name(token_id) or "" for token_id in token_ids), count)
    answer = TokenizeResponse(count, assets.max_model_len, pieces.ids(token_ids), names)
    return json_answer(context, pieces, answer)


async def _encode(context: ApiContext, body: TokenizeRequest, assets: ModelAssets) -> list[int]:
    if body.messages is None:
        add_special_tokens = body.add_special_tokens is not False
        # No bound by the model's context: counting too long texts is what this endpoint is for.
        return await assets.tokenizer.encode_async(
            body.prompt or "", add_special_tokens, parse_special_tokens=True
        )
    options = chat_options(
        body.add_generation_prompt,
        body.continue_final_message,
        body.documents,
        effort_variables(body.reasoning_effort, body.chat_template_kwargs),
    )
    tools = body.tools or ()
    check_tools(tools)
    options = replace(options, tools=template_tools(tools) or None)
    encoder = PromptEncoder(assets, bool(body.add_special_tokens), None, context.slices.turn)
    prompt = await encoder.encode_chat(template_messages(body.messages), options)
    return prompt.token_ids


def decode_slices(tokenizer: Tokenizer, token_ids: list[int]) -> Iterator[str]:
    """Yield the text of token ids, special ones included, in slices."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    for first in range(0, len(token_ids), SLICE_VALUES):
        yield detokenizer.push(token_ids[first : first + SLICE_VALUES])
    yield detokenizer.finish()


async def detokenize(context: ApiContext, request: Request) -> Response:
    """Answer POST /detokenize.

    Raises:
        SplitServeError: as read_struct(); or a token id outside the vocabulary.
    """
    body = await read_struct(context, request, detokenize_decoder, {})
    assets = (await find_model(context, body.model)).assets
    await check_token_ids(body.tokens, "tokens", assets.vocab_size, context.slices.turn)
    pieces = JsonPieces()
    texts = decode_slices(assets.tokenizer, body.tokens)
    text = pieces.long_text(texts) if len(body.tokens) > SLICE_VALUES else "".join(texts)
    return json_answer(context, pieces, DetokenizeResponse(text))

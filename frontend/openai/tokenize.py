"""POST /tokenize and /detokenize: the tokenizer and template of a served model, without running it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from engine_core.errors import InvalidRequestError
from frontend.json_body import BodyDecoder
from frontend.model_assets import ModelAssets
from frontend.openai.context import ApiContext, json_response, read_struct
from frontend.openai.models import find_model
from frontend.openai.prompts import chat_options, check_vocabulary, encode_chat
from frontend.openai.tokenize_schema import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from frontend.openai.unsupported import REFUSED_TOKENIZE

tokenize_decoder = BodyDecoder(TokenizeRequest)
detokenize_decoder = BodyDecoder(DetokenizeRequest)


async def tokenize(context: ApiContext, request: Request) -> Response:
    """Answer POST /tokenize.

    Raises:
        SplitServeError: as read_struct() and the encoders; or not exactly one of prompt and messages.
    """
    body = await read_struct(context, request, tokenize_decoder, REFUSED_TOKENIZE)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("exactly one of prompt and messages must be given", "prompt")
    assets = (await find_model(context, body.model)).assets
    token_ids = await _encode(body, assets)
    names = None
    if body.return_token_strs:
        names = [assets.tokenizer.token_name(token_id) or "" for token_id in token_ids]
    return json_response(TokenizeResponse(len(token_ids), assets.max_model_len, token_ids, names))


async def _encode(body: TokenizeRequest, assets: ModelAssets) -> list[int]:
    if body.messages is None:
        add_special_tokens = body.add_special_tokens is not False
        # No bound by the model's context: counting too long texts is what this endpoint is for.
        return await assets.tokenizer.encode_async(
            body.prompt or "", add_special_tokens, parse_special_tokens=True
        )
    options = chat_options(
        body.add_generation_prompt, body.continue_final_message, body.documents, body.chat_template_kwargs
    )
    prompt = await encode_chat(
        body.messages, options, assets, add_special_tokens=bool(body.add_special_tokens)
    )
    return prompt.token_ids


async def detokenize(context: ApiContext, request: Request) -> Response:
    """Answer POST /detokenize.

    Raises:
        SplitServeError: as read_struct(); or a token id outside the vocabulary.
    """
    body = await read_struct(context, request, detokenize_decoder, {})
    assets = (await find_model(context, body.model)).assets
    check_vocabulary(body.tokens, "tokens", assets.vocab_size)
    return json_response(DetokenizeResponse(assets.tokenizer.decode(body.tokens, skip_special_tokens=False)))

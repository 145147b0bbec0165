"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: other adapters while the server runs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.openai.context import ApiContext, json_response, read_struct

# Reading takes seconds at most, but an adapter may have to wait until others are not used any more.
TIMEOUT_S = 60.0
_MAX_PATH_CHARS = 4096

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class LoadAdapterRequest(msgspec.Struct, frozen=True):
    """The body of /v1/load_lora_adapter, with vLLM's field names.

    Attributes:
        lora_name: name under which requests may ask for it.
        lora_path: its directory, below that of --lora-dir or relative to it.
    """

    lora_name: _Name
    lora_path: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_PATH_CHARS)]


class UnloadAdapterRequest(msgspec.Struct, frozen=True):
    """The body of /v1/unload_lora_adapter."""

    lora_name: _Name


class AdapterAnswer(msgspec.Struct, frozen=True):
    """What has become of an adapter."""

    lora_name: str
    status: Literal["loaded", "unloaded"]


load_decoder = BodyDecoder(LoadAdapterRequest)
unload_decoder = BodyDecoder(UnloadAdapterRequest)


async def load_adapter(context: ApiContext, request: Request) -> Response:
    """Have every engine load an adapter.

    Raises:
        SplitServeError: as read_struct() and AdapterCalls.load().
    """
    body = await read_struct(context, request, load_decoder, {})
    await context.pool.adapters.load(body.lora_name, body.lora_path, TIMEOUT_S)
    return json_response(AdapterAnswer(body.lora_name, "loaded"))


async def unload_adapter(context: ApiContext, request: Request) -> Response:
    """Have every engine forget an adapter; requests that use it go on.

    Raises:
        SplitServeError: as read_struct() and AdapterCalls.unload().
    """
    body = await read_struct(context, request, unload_decoder, {})
    await context.pool.adapters.unload(body.lora_name, TIMEOUT_S)
    return json_response(AdapterAnswer(body.lora_name, "unloaded"))

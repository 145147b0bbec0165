"""Request fields that the operator can turn on for every request."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.openai.schema.fields import GenerationFields, StreamOptions

T = TypeVar("T", bound=GenerationFields)


def with_server_defaults(body: T, config: FrontendConfig) -> T:
    """Return the body as if the client had asked for what the flags give to every request.

    --enable-force-include-usage ends every stream with its usage, whatever the client said;
    --return-tokens-as-token-ids holds for clients that did not say.
    """
    if config.enable_force_include_usage and body.stream:
        asked = body.stream_options or StreamOptions()
        body = msgspec.structs.replace(
            body, stream_options=msgspec.structs.replace(asked, include_usage=True)
        )
    if config.return_tokens_as_token_ids and body.return_tokens_as_token_ids is None:
        body = msgspec.structs.replace(body, return_tokens_as_token_ids=True)
    return body

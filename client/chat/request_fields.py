"""The fields that all requests of a chat or completion have."""

from __future__ import annotations

from splitserve.client.chat.settings import PromptSettings
from splitserve.client.http.api import Api
from splitserve.client.sampling_fields import SamplingSettings
from splitserve.client.target.target import find_model


async def request_fields(
    api: Api, settings: PromptSettings, sampling: SamplingSettings, limit_field: str
) -> dict[str, object]:
    """Return model, length and sampling.

    Args:
        api: of the server.
        settings: of the command.
        sampling: likewise.
        limit_field: what the longest answer is called in the request.

    Raises:
        ApiError: the server does not answer.
    """
    model = await find_model(api, settings.served_model)
    limit = {} if settings.max_tokens is None else {limit_field: settings.max_tokens}
    return {"model": model.id, **limit, **sampling.fields()}

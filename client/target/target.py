"""The server that a command asks, for as long as it runs, and the model's name there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from splitserve.client.http.address import Address
from splitserve.client.http.answers import ModelCard, ModelList
from splitserve.client.http.api import Api
from splitserve.client.http.errors import ApiError
from splitserve.client.target.own_server import OwnServer
from splitserve.client.target.settings import DEFAULT_URL, TargetSettings
from splitserve.engine_core.errors import ConfigError


@contextmanager
def target(settings: TargetSettings, model: str | None) -> Iterator[Address]:
    """Yield the address of the server, starting one if a model is named.

    Args:
        settings: of the command.
        model: to start a server of, None to ask one that runs.

    Raises:
        ConfigError: both are named, or the URL is none.
        EngineUnavailableError: the model cannot be served.
    """
    if model is None:
        if settings.serve_flags:
            raise ConfigError("--serve-flags is for a server of the command's own: name its MODEL")
        yield settings.address(settings.url or DEFAULT_URL)
        return
    if settings.url:
        raise ConfigError(f"either MODEL or --url, not both: for a model of the server --model {model}")
    with OwnServer(model, settings.serve_flags) as server:
        yield settings.address(server.url)


async def find_model(api: Api, name: str) -> ModelCard:
    """Return the model of a name, the server's first one for "".

    A name that the server does not list is taken as it is: some servers know more than they list.

    Raises:
        ApiError: the server does not answer, or has no model.
    """
    if name:
        return ModelCard(name)
    models = (await api.get(api.path("/models"), ModelList)).data
    if not models:
        raise ApiError("the server has no model")
    return models[0]

"""/debug/log_level: which log level there is, and another one while the server runs."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.ipc.wire import LogLevelName
from splitserve.engine_core.process.logs import log_level, set_log_level
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.metrics.engines import engine_names
from splitserve.frontend.openai.context import ApiContext, json_response, read_struct

# An engine in a long step answers after it, and does as it is told then, too.
TIMEOUT_S = 2.0


class LogLevelRequest(msgspec.Struct, frozen=True):
    """The body of POST /debug/log_level."""

    level: LogLevelName


class LogLevels(msgspec.Struct, frozen=True):
    """The level of this frontend, and whether each engine has taken it over.

    Attributes:
        level: least severe level that is logged.
        engines: by name; false for one that has not answered. Empty if nothing was changed.
    """

    level: str
    engines: dict[str, bool] = {}


decoder = BodyDecoder(LogLevelRequest)


async def show_log_level(request: Request) -> Response:
    """Return the level of this frontend."""
    return json_response(LogLevels(log_level()))


async def change_log_level(context: ApiContext, request: Request) -> Response:
    """Have this frontend, all engines, their workers and their other frontends log from a level on.

    Raises:
        SplitServeError: as read_struct().
    """
    body = await read_struct(context, request, decoder, {})
    set_log_level(body.level)
    done = await context.pool.set_log_level(body.level, TIMEOUT_S)
    statuses = context.pool.status()
    names = engine_names(statuses)
    engines = {name: done.get(status.address, False) for name, status in zip(names, statuses, strict=True)}
    return json_response(LogLevels(body.level, engines))

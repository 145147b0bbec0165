"""uvicorn still has each undocumented name that the adapter relies on."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from splitserve import frontend
from splitserve.frontend.http.connection import uvicorn_adapter

ADAPTER = Path(uvicorn_adapter.__file__)

PROTOCOL_ATTRIBUTES = [
    "transport",
    "loop",
    "parser",
    "headers",
    "scope",
    "client",
    "scheme",
    "cycle",
    "pipeline",
    "flow",
    "server_state",
    "app_state",
]
PROTOCOL_METHODS = [
    "connection_made",
    "connection_lost",
    "pause_writing",
    "resume_writing",
    "eof_received",
    "data_received",
    "on_message_begin",
    "on_url",
    "on_header",
    "on_headers_complete",
    "on_body",
    "on_message_complete",
    "on_response_complete",
    "shutdown",
    "_start_asgi_task",
    "_unset_keepalive_if_required",
]
CYCLE_ATTRIBUTES = [
    "scope",
    "keep_alive",
    "waiting_for_100_continue",
    "more_body",
    "message_event",
    "disconnected",
    "response_started",
    "response_complete",
    "chunked_encoding",
    "expected_content_length",
]
SERVER_ATTRIBUTES = ["config", "server_state", "should_exit", "force_exit"]
SERVER_METHODS = ["startup", "shutdown", "handle_exit", "serve", "run"]
STATE_ATTRIBUTES = ["connections", "tasks", "default_headers", "total_requests"]


def gone(owner: object, name: str) -> str:
    """What to say of a missing name."""
    kind = owner if isinstance(owner, type) else type(owner)
    return (
        f"uvicorn {uvicorn.__version__} has no {kind.__module__}.{kind.__qualname__}.{name}, "
        f"which {ADAPTER.name} relies on: adapt it, or lower the bound of uvicorn in pyproject.toml"
    )


async def no_app(scope: object, receive: object, send: object) -> None:
    """Be what uvicorn needs to be configured."""


def make_config() -> uvicorn.Config:
    return uvicorn.Config(no_app, log_config=None, ws="none", http=HttpToolsProtocol)


async def make_protocol() -> HttpToolsProtocol:
    return HttpToolsProtocol(config=make_config(), server_state=ServerState(), app_state={})


def make_cycle() -> RequestResponseCycle:
    """A cycle as uvicorn makes it, by the names of its parameters."""
    transport = asyncio.Transport()
    logger = logging.getLogger("test")
    return RequestResponseCycle(
        scope={"type": "http"},  # type: ignore[typeddict-item]
        transport=transport,
        flow=FlowControl(transport),
        logger=logger,
        access_logger=logger,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )


@pytest.mark.parametrize("name", PROTOCOL_ATTRIBUTES)
async def test_a_protocol_has_the_attribute(name: str) -> None:
    protocol = await make_protocol()
    assert hasattr(protocol, name), gone(protocol, name)


@pytest.mark.parametrize("name", PROTOCOL_METHODS)
def test_a_protocol_has_the_method(name: str) -> None:
    assert callable(getattr(HttpToolsProtocol, name, None)), gone(HttpToolsProtocol, name)


@pytest.mark.parametrize("name", CYCLE_ATTRIBUTES)
async def test_a_cycle_has_the_attribute(name: str) -> None:
    cycle = make_cycle()
    assert hasattr(cycle, name), gone(cycle, name)


async def test_the_flow_tells_whether_writing_is_paused() -> None:
    flow = FlowControl(asyncio.Transport())
    assert flow.write_paused is False, gone(flow, "write_paused")


async def test_every_request_starts_by_the_method_that_is_extended() -> None:
    parameters = list(inspect.signature(HttpToolsProtocol._start_asgi_task).parameters)
    assert parameters == ["self", "cycle", "app"], gone(HttpToolsProtocol, "_start_asgi_task(cycle, app)")


@pytest.mark.parametrize("name", SERVER_ATTRIBUTES)
def test_a_server_has_the_attribute(name: str) -> None:
    server = uvicorn.Server(make_config())
    assert hasattr(server, name), gone(server, name)


@pytest.mark.parametrize("name", SERVER_METHODS)
def test_a_server_has_the_method(name: str) -> None:
    assert callable(getattr(uvicorn.Server, name, None)), gone(uvicorn.Server, name)


@pytest.mark.parametrize("name", STATE_ATTRIBUTES)
def test_the_state_of_a_server_has_the_attribute(name: str) -> None:
    assert hasattr(ServerState(), name), gone(ServerState, name)


async def test_a_server_that_has_started_keeps_its_servers_and_the_life_of_its_app() -> None:
    config = make_config()
    config.lifespan = "off"
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[])
    assert server.servers == [], gone(server, "servers")
    assert server.lifespan.state == {}, gone(server, "lifespan.state")
    await server.lifespan.shutdown()
    assert config.http_protocol_class is HttpToolsProtocol, gone(config, "http_protocol_class")


def test_no_other_module_names_the_insides_of_uvicorn() -> None:
    """Config is documented; so is what httptools, which parses, calls."""
    inside = re.compile(r"from uvicorn[._]|import uvicorn\.|from uvicorn import (?!Config$)", re.MULTILINE)
    folder = Path(frontend.__file__).parent
    naming = [path for path in folder.rglob("*.py") if inside.search(path.read_text())]
    assert [path.name for path in naming] == [ADAPTER.name]

"""The way of a stream, leg by leg: what each may know of the legs before it (docs/architecture.md)."""

from __future__ import annotations

import pytest

from tests.source_tree import import_graph

ENGINES = "frontend.engines."
# Leg -> modules of frontend.engines beside its own. Sockets and sessions are known to the pool alone, since
# the owner of open streams stands between them and everything here.
LEGS = {
    "frontend.engines.connection": set(),
    "frontend.engines.failover": {"connection.displacement", "connection.open_sequence", "time_limits"},
    "frontend.engines.stream": {
        "connection.open_sequence",
        "connection.token_relay",
        "generation",
        "status",
    },
    "frontend.engines.beam": {
        "connection.open_sequence",
        "generation",
        "served_model",
        "status",
        "stream.logprobs",
        "stream.sequence_stream",
    },
    "frontend.openai": {
        "connection.token_relay",
        "generation",
        "pool",
        "request_check",
        "served_model",
        "stream.engine_generation",
        "time_limits",
        "stream.sequence_stream",
    },
    "frontend.http.response": {"connection.token_relay"},
    "frontend.http.connection": set(),
}


@pytest.mark.parametrize("leg", LEGS)
def test_a_leg_knows_its_neighbors_by_their_contracts_only(leg: str) -> None:
    graph = import_graph(("frontend",))
    imported = set().union(*(graph[module] for module in graph if module.startswith(f"{leg}.")))
    known = {name for name in imported if name.startswith(ENGINES) and not name.startswith(f"{leg}.")}
    assert {name.removeprefix(ENGINES) for name in known} == LEGS[leg]

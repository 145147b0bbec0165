"""What is shown: engines, frontends and the oldest requests, as tables."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from splitserve.client.top.metrics import EngineLoad, Rates, Sample, rates

BAR_CELLS = 20
STATE_STYLES = {"ready": "green", "lost": "red", "refused": "red"}


class OpenRequest(msgspec.Struct, frozen=True):
    """An open request as /debug/requests tells it."""

    engine: str
    request_id: str
    state: str
    waits_for: str | None
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    age_s: float


class OpenRequests(msgspec.Struct, frozen=True):
    """The oldest open requests."""

    requests: list[OpenRequest] = []


def view(
    place: str, before: Sample, now: Sample, requests: Sequence[OpenRequest] | None, max_requests: int
) -> RenderableType:
    """Return the tables.

    Args:
        place: the server, for the title.
        before: a sample from a while ago, or the same one.
        now: the newest sample.
        requests: open requests; None if the server does not tell.
        max_requests: as many are shown.
    """
    parts: list[RenderableType] = [Text(f"SplitServe at {place}", style="bold"), _engines(before, now)]
    if now.frontends:
        parts.append(_frontends(now))
    if requests is None:
        parts.append(Text("/debug/requests does not answer", style="dim"))
    else:
        parts.append(_requests(requests, max_requests))
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < 2 else "right", no_wrap=True)
    return table


def _engines(before: Sample, now: Sample) -> Table:
    columns = (
        "running",
        "waiting",
        "KV blocks",
        "cached",
        "prompt tok/s",
        "output tok/s",
        "steps/s",
        "preempt/s",
    )
    table = _table("engines", "engine", "state", *columns, "prefix hits")
    for name, load in now.engines.items():
        style = STATE_STYLES.get(load.state, "yellow")
        table.add_row(
            name, Text(load.state, style=style), *_load_cells(load), *_rate_cells(rates(before, now, name))
        )
    return table


def _load_cells(load: EngineLoad) -> list[str | Text]:
    used = load.get("kv_cache_usage_perc")
    num_blocks = load.get("num_kv_blocks")
    cached = load.get("num_cached_kv_blocks") / num_blocks if num_blocks else 0.0
    return [
        f"{load.get('num_requests_running'):.0f}",
        f"{load.get('num_requests_waiting'):.0f}",
        bar(used, cached),
        f"{cached:.0%}",
    ]


def _rate_cells(found: Rates) -> list[str]:
    numbers = (found.prompt_tps, found.output_tps, found.steps_ps)
    return [*(f"{number:,.0f}" for number in numbers), f"{found.preemptions_ps:.1f}", f"{found.cached:.0%}"]


def bar(used: float, cached: float) -> Text:
    """Return a bar of KV blocks: in use, cached by nobody's use, free.

    Args:
        used: share in use, 0 to 1.
        cached: share that holds a reusable prefix, in use or not.
    """
    num_used = round(min(1.0, used) * BAR_CELLS)
    num_cached = min(BAR_CELLS - num_used, round(max(0.0, cached - used) * BAR_CELLS))
    rest = BAR_CELLS - num_used - num_cached
    return Text.assemble(
        ("█" * num_used, "cyan"), ("▒" * num_cached, "blue"), ("·" * rest, "dim"), f" {used:4.0%}"
    )


def _frontends(now: Sample) -> Table:
    table = _table(
        "frontends", "frontend", "state", "connections", "requests", "sequences", "failed", "migrated"
    )
    for name, values in now.frontends.items():
        is_up = values.get("frontend_up", 1.0)
        cells = (
            *("frontend_open_connections", "frontend_open_requests", "frontend_open_sequences"),
            *("frontend_requests_failed_total", "frontend_migrations_total"),
        )
        state = Text("up", style="green") if is_up else Text("down", style="red")
        table.add_row(name, state, *(f"{values.get(cell, 0.0):.0f}" for cell in cells))
    return table


def _requests(requests: Sequence[OpenRequest], max_requests: int) -> Table:
    shown = sorted(requests, key=lambda each: -each.age_s)[:max_requests]
    title = f"oldest requests ({len(shown)} of {len(requests)})"
    table = _table(title, "request", "state", "age s", "prompt", "output", "preempted", "engine")
    for each in shown:
        state = each.state + (f" ({each.waits_for})" if each.waits_for else "")
        numbers = (each.prompt_tokens, each.output_tokens, each.preemptions)
        # Ids are the clients' words.
        name = "".join(char if char.isprintable() else "?" for char in each.request_id)[:48]
        table.add_row(Text(name), state, f"{each.age_s:.1f}", *map(str, numbers), each.engine)
    return table

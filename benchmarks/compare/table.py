"""How do the results read as tables of Markdown?"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.results import LIMIT, Results, Turn, best_of, by_round, cells, engines, paired_ratio
from benchmarks.compare.scenarios import ONLINE, UNITS

NONE = "-"


def report(results: Results) -> str:
    """Return everything: the machine, rates, ratios, servers, instructions, and what was absent."""
    machine = [f"{name}: {value}" for name, value in results.machine.items()]
    loads = [turn.load_average for turn in results.turns]
    if loads:
        machine.append(f"load average before turns: {min(loads):.1f} to {max(loads):.1f}")
        others = statistics.median(turn.other_cores for turn in results.turns)
        machine.append(f"cores busy with other work during turns: {others:.1f} (median)")
    parts = ["; ".join(machine), rates(results.turns), ratios(results.turns)]
    parts += [streams(results.turns), servers(results)]
    parts += [f"instructions of {engine}: {said}" for engine, said in results.instructions.items()]
    parts += [f"{engine} left out: {reason}" for engine, reason in results.absent.items()]
    return "\n\n".join(part for part in parts if part)


def rates(turns: Sequence[Turn]) -> str:
    """Return the median tokens per second of each engine, one line per model and scenario."""
    names = engines(turns)
    rows = []
    for model, scenario in cells(turns):
        found = (by_round(turns, name, model, scenario).values() for name in names)
        medians = [_rate(statistics.median(values)) if values else NONE for values in found]
        rows.append([f"{model}, {scenario}, {UNITS.get(scenario, 'tok/s')}", *medians])
    return markdown(["", *names], rows)


def ratios(turns: Sequence[Turn]) -> str:
    """Return ours over each peer of the same kind, their best, and the limit; medians over the rounds.

    Of the same kind are weights of as many bits, with the same adapters. What adapters leave of the speed
    is a column of its own. Only what has pairs gets a column.
    """
    names = [name for name in engines(turns) if name in ENGINES]
    ours = [name for name in names if ENGINES[name].ours]
    columns: list[tuple[str, str, list[str]]] = []
    for name in ours:
        peers = [n for n in names if not ENGINES[n].ours and _kind(n) == _kind(name)]
        columns += [(f"{name} / {peer}", name, [peer]) for peer in peers]
        if len(peers) > 1:
            columns.append((f"{name} / best peer", name, peers))
        if _kind(name) == (16, ""):
            columns.append((f"{name} / {LIMIT}", name, [LIMIT]))
    plain = [(name, ENGINES[name].plain) for name in names]
    columns += [(f"{name} / {other}", name, [other]) for name, other in plain if other]
    rows = []
    for model, scenario in cells(turns):
        row = [f"{model}, {scenario}"]
        for _, name, others in columns:
            found = [by_round(turns, other, model, scenario) for other in others]
            best = best_of([rate for rate in found if rate])
            ratio = paired_ratio(by_round(turns, name, model, scenario), best)
            row.append(NONE if ratio is None else f"{ratio:.2f}")
        rows.append(row)
    return _without_empty_columns(["", *(title for title, _, _ in columns)], rows)


def _kind(name: str) -> tuple[int, str]:
    return ENGINES[name].precision, ENGINES[name].adapters


def streams(turns: Sequence[Turn]) -> str:
    """Return what clients of the servers felt, medians over the rounds."""
    online = [turn for turn in turns if turn.scenario in ONLINE]
    details = ("ttft_p50_ms", "itl_p50_ms", "itl_p99_ms", "client_cores", "server_cores")
    groups: dict[tuple[str, str, str], list[Turn]] = {}
    for turn in online:
        groups.setdefault((turn.model, turn.scenario, turn.engine), []).append(turn)
    rows = []
    for (model, scenario, engine), group in groups.items():
        values = [statistics.median(turn.details[name] for turn in group) for name in details]
        rows.append([f"{model}, {scenario}", engine, *(f"{value:.2f}" for value in values)])
    heads = ["", "server", "TTFT p50, ms", "ITL p50, ms", "ITL p99, ms", "client, cores", "server, cores"]
    return markdown(heads, rows)


def servers(results: Results) -> str:
    """Return how long each server took to be ready, and the memory and CPU it took then."""
    rows = [
        [
            f"{start.model}, {start.engine}",
            f"{start.ready_s:.1f}",
            f"{start.pss_bytes / 1e6:.0f}",
            f"{start.extra_bytes / 1e6:.0f}",
            f"{start.idle_cores:.2f}",
        ]
        for start in results.starts
    ]
    return markdown(
        ["server", "ready after s", "memory, MB", "above weights and KV, MB", "idle, cores"], rows
    )


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, "" if it has no rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}", *lines])


def _without_empty_columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    kept = [i for i in range(len(heads)) if i == 0 or any(row[i] != NONE for row in rows)]
    if len(kept) == 1:
        return ""
    return markdown([heads[i] for i in kept], ([row[i] for i in kept] for row in rows))


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"

"""What was measured, how is it kept, and what do its ratios say?"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

# Stands among the engines: what the machine's memory, or its arithmetic for prefill, would allow.
LIMIT = "machine's limit"


@dataclass(frozen=True, slots=True)
class Turn:
    """One engine's turn at a scenario.

    Attributes:
        tok_s: tokens per second; of the prompt for prefill, new ones else.
        load_average: of one minute, before the turn.
        other_cores: cores kept busy by others than the engine and this program, roughly for short turns.
        details: further figures by name, units in the names.
    """

    engine: str
    model: str
    scenario: str
    round: int
    tok_s: float
    load_average: float
    other_cores: float = 0.0
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """One start of an engine's server.

    Attributes:
        ready_s: from the command to the first 200 of its health check.
        pss_bytes: memory of all its processes then.
        extra_bytes: of it, what is not weights or KV cache.
        idle_cores: CPU seconds per second while nobody asks.
    """

    engine: str
    model: str
    ready_s: float
    pss_bytes: int
    extra_bytes: int
    idle_cores: float


@dataclass(slots=True)
class Results:
    """Everything of a run; `machine` and, by engine, `absent` and `instructions` are words for the reader."""

    machine: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    instructions: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write JSON; a reader sees the old file or the new one."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        part.replace(path)


def load(path: Path) -> Results:
    """Read what save wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    turns = [Turn(**turn) for turn in document["turns"]]
    starts = [Start(**start) for start in document["starts"]]
    # Older files do not have it.
    instructions = document.get("instructions", {})
    return Results(document["machine"], document["absent"], turns, starts, instructions)


def cells(turns: Iterable[Turn]) -> list[tuple[str, str]]:
    """Return the pairs (model, scenario) that were measured, in the order of their first turn."""
    return list(dict.fromkeys((turn.model, turn.scenario) for turn in turns))


def engines(turns: Iterable[Turn]) -> list[str]:
    """Return the engines in the order of their first turn, the machine's limit last."""
    names = dict.fromkeys(turn.engine for turn in turns)
    return [name for name in names if name != LIMIT] + [name for name in names if name == LIMIT]


def by_round(turns: Iterable[Turn], engine: str, model: str, scenario: str) -> dict[int, float]:
    """Return an engine's tokens per second in each round of a scenario."""
    wanted = (engine, model, scenario)
    return {turn.round: turn.tok_s for turn in turns if (turn.engine, turn.model, turn.scenario) == wanted}


def paired_ratio(ours: dict[int, float], theirs: dict[int, float]) -> float | None:
    """Return the median of ours / theirs over the rounds that both have; None if there is none.

    The machine's speed drifts from minute to minute: two figures of one round are neighbours in time.
    """
    rounds = ours.keys() & theirs.keys()
    return statistics.median(ours[r] / theirs[r] for r in rounds) if rounds else None


def best_of(rates: Sequence[dict[int, float]]) -> dict[int, float]:
    """Return the best rate of each round that all of them have."""
    rounds = set.intersection(*(set(rate) for rate in rates)) if rates else set()
    return {r: max(rate[r] for rate in rates) for r in rounds}

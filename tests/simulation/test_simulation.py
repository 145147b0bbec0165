"""Failover under simulated faults: some seeds, every kill point, and mistakes that the simulation finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from splitserve.engine_core.executor.simulated.drafted_rows import DraftedRows
from splitserve.engine_core.executor.simulated.drafted_rows import Run as DraftedRun
from splitserve.engine_core.ipc.messages import AddRequest, HandOver
from splitserve.engine_core.kept.ledger import Ledger
from splitserve.engine_core.process.kill_points import KILL_POINTS
from splitserve.frontend.engines.connection.session import EngineSession
from splitserve.frontend.engines.failover import owner, placements
from splitserve.frontend.engines.failover.resumption import resumption
from tests.simulation.__main__ import main
from tests.simulation.run import ENGINE_POINTS, FRONTEND_POINTS, POINTS, Run

NUM_SEEDS = 12
# Not simulated: how a spare waits, and how an engine attaches to workers of another; see tests/system.
NOT_SIMULATED = {"engine.prepared", "engine.attaching"}


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_clients_see_what_they_would_see_without_faults(seed: int) -> None:
    assert Run(seed).run().problems == []


def test_engines_that_draft_die_and_move_requests_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Counter[str] = Counter()
    compute = DraftedRows.compute

    def count(rows: DraftedRows, row: int, num_tokens: int, drafts: list[int]) -> DraftedRun:
        run = compute(rows, row, num_tokens, drafts)
        runs["right"] += len(run.token_ids) - 1
        runs["wrong"] += run.num_drafts - len(run.token_ids) + 1
        return run

    monkeypatch.setattr(DraftedRows, "compute", count)
    num_migrations = 0
    for seed in range(5):
        outcome = Run(seed, speculate="ngram").run()
        assert outcome.problems == []
        num_migrations += outcome.num_migrations
    assert min(runs["right"], runs["wrong"], num_migrations) > 0


@pytest.mark.parametrize("point", POINTS)
def test_processes_die_at_every_point_and_clients_do_not_notice(point: str) -> None:
    outcome = Run(0, point).run()
    assert outcome.problems == []
    assert outcome.killed[point] > 0


def test_every_point_of_engines_and_frontends_is_simulated() -> None:
    of_both = {name for name in KILL_POINTS if name.startswith(("engine.", "frontend."))}
    # A frontend that has only started has nothing yet.
    assert of_both - NOT_SIMULATED - {"frontend.started"} == set(ENGINE_POINTS) | set(FRONTEND_POINTS)


def test_a_seed_replays_exactly() -> None:
    first, second = Run(3), Run(3)
    assert first.run() == second.run()
    assert [client.history for client in first.clients] == [client.history for client in second.clients]


def lose_a_token(patch: pytest.MonkeyPatch) -> None:
    """Resume without the first token; without the last, it would merely be generated again, and dropped."""
    _change_resumption(patch, lambda asked: {"resume_token_ids": asked.resume_token_ids[4:]})


def change_the_seed(patch: pytest.MonkeyPatch) -> None:
    _change_resumption(patch, lambda asked: {"sampling": msgspec.structs.replace(asked.sampling, seed=1)})


def ignore_hand_overs(patch: pytest.MonkeyPatch) -> None:
    """Take the end of an engine that has handed over for its death."""

    def ignore(session: EngineSession, message: HandOver) -> None:
        pass

    patch.setattr(EngineSession, "_receive_hand_over", ignore)


def forget_who_left(patch: pytest.MonkeyPatch) -> None:
    """Place sequences whose client is gone."""
    abort = owner.Failover.abort

    def forget(failover: Any, client: Any, sequences: Any) -> None:
        abort(failover, client, [sequence for sequence in sequences if sequence.place is not None])

    patch.setattr(owner.Failover, "abort", forget)


def note_the_wrong_block(patch: pytest.MonkeyPatch) -> None:
    """Tell successors of another block than the one that holds a prefix."""
    enter = Ledger.enter

    def enter_next(ledger: Ledger, hash_of: dict[int, bytes]) -> None:
        enter(ledger, {(block_id + 1) % 20: block_hash for block_id, block_hash in hash_of.items()})

    patch.setattr(Ledger, "enter", enter_next)


def _change_resumption(patch: pytest.MonkeyPatch, change: Callable[[AddRequest], dict[str, Any]]) -> None:
    def changed(*args: Any) -> AddRequest:
        asked = resumption(*args)
        return msgspec.structs.replace(asked, **change(asked))

    patch.setattr(placements, "resumption", changed)


@pytest.mark.parametrize(
    "mistake",
    [lose_a_token, change_the_seed, ignore_hand_overs, forget_who_left, note_the_wrong_block],
)
def test_a_mistake_is_found_within_few_seeds(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)

    def is_found(seed: int) -> bool:
        try:
            return bool(Run(seed).run().problems)
        except AssertionError:
            return True

    assert any(map(is_found, range(200)))


def test_the_command_reports_what_it_has_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--seed", "5", "--processes", "1"]) == 0
    said = capsys.readouterr().out
    assert "first seed 5" in said
    assert "3 seeds" in said
    assert "0 failed" in said


def test_the_command_names_a_seed_that_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "run", lambda self: 1 // 0)
    assert main(["--seeds", "1", "--seed", "5", "--processes", "1"]) == 1
    said = capsys.readouterr().out
    assert "python -m tests.simulation --seed 5 --seeds 1" in said
    assert "ZeroDivisionError" in said

"""A fixed number of cases of every target pass, and the runner finds, keeps and repeats what fails."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.__main__ import main
from tests.fuzz.answers import check_answer
from tests.fuzz.case import Case, load, minimised
from tests.fuzz.mutation.formats import mutate_json, mutate_msgpack, mutate_safetensors
from tests.fuzz.mutation.frames import engine_frames, frontend_frames
from tests.fuzz.run_target import Finding, Plan, run_target
from tests.fuzz.targets.catalogue import CATALOGUE

# About a second each.
NUM_CASES = {
    "engine-frames": 20,
    "engine-answers": 40,
    "failover-frames": 12,
    "worker-frames": 10,
    "model-files": 600,
    "weight-files": 200,
    "text-files": 150,
    "kept-files": 300,
    "bodies": 12,
}


@pytest.mark.parametrize("name", NUM_CASES)
def test_a_fixed_number_of_cases_pass(name: str) -> None:
    rng = random.Random(2024)
    with contextlib.closing(CATALOGUE[name].make()) as target:
        count = sum(target.run(target.draw(rng)) for _ in range(NUM_CASES[name]))
    assert count >= NUM_CASES[name]


def test_a_seed_draws_the_same_cases() -> None:
    target = CATALOGUE["engine-frames"].make()
    assert target.draw(Random(5)) == target.draw(Random(5)) != target.draw(Random(6))


@pytest.mark.parametrize("mutate", [mutate_msgpack, mutate_json, mutate_safetensors])
def test_mutations_change_what_they_are_given(mutate) -> None:  # type: ignore[no-untyped-def]
    corpus = frontend_frames() + engine_frames()
    corpus += [b'{"a": [1, "two", null, {"b": 3.5}]}', bytes(8), b""]
    rng = Random(1)
    changed = [mutate(rng, data, corpus) != data for data in corpus * 20]
    assert sum(changed) > 0.9 * len(changed)


class Sensitive:
    """Fails at a piece that contains an x, after one that contains a y."""

    what = "pieces"

    def draw(self, rng: Random) -> Case:
        return [rng.choice((b"a", b"b", b"y", b"x")) for _ in range(40)]

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        return piece

    def run(self, case: Case) -> int:
        first = case.index(b"y") if b"y" in case else len(case)
        assert b"x" not in case[first:]
        return len(case)

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        """There is nothing to end."""


def test_a_case_that_fails_is_made_small_and_kept(tmp_path: Path) -> None:
    with pytest.raises(Finding, match=r"--target sensitive --replay .*\.case") as caught:
        run_target(Sensitive(), Plan("sensitive", 60, 1, tmp_path), print)
    assert "AssertionError" in str(caught.value)
    (path,) = tmp_path.glob("sensitive-*.case")
    assert load(path) == [b"y", b"x"]


class Sound(Sensitive):
    """Never fails."""

    def run(self, case: Case) -> int:
        return len(case)


class Growing(Sound):
    """Notices at the end that something is left."""

    def finish(self) -> str:
        raise AssertionError("a block is left")


def test_what_only_shows_at_the_end_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(Finding, match="a block is left"):
        run_target(Growing(), Plan("growing", 0, 1, tmp_path), print)


def test_a_count_is_reached_however_long_it_takes(tmp_path: Path) -> None:
    assert run_target(Sound(), Plan("sensitive", 0, 1, tmp_path, 100), print) == 120, "three cases of 40"


def test_processes_share_a_count_and_draw_cases_of_their_own(tmp_path: Path) -> None:
    plans = Plan("bodies", 60, 7, tmp_path, 100).shared(3)
    assert [(plan.seed, plan.num_wanted) for plan in plans] == [(7, 34), (8, 34), (9, 34)]
    assert len({plan.running for plan in plans}) == 3


def test_what_cannot_be_left_out_stays() -> None:
    assert minimised([b"a"] * 9 + [b"x"] + [b"a"] * 9, lambda case: b"x" in case) == [b"x"]


def test_a_kept_case_can_be_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.case"
    path.write_bytes(b"\x91\xc4\x03\x00{}")
    assert main(["--target", "model-files", "--replay", str(path)]) == 0
    assert "1 files, none failed" in capsys.readouterr().out


def test_targets_run_in_processes_of_their_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "0", "--seed", "1", "--target", "model-files"]) == 0
    told = capfd.readouterr().out
    assert "model-files: 1 files" in told
    assert told.endswith("passed\n")


def test_a_target_runs_in_several_processes_until_it_has_run_enough(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["--count", "5", "--processes", "2", "--seed", "1", "--target", "model-files"]) == 0
    told = capfd.readouterr().out
    assert told.count("model-files: 3 files") == 2
    assert told.endswith("passed\n")


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (500, "application/json", b"{}"),
        (302, "text/plain", b""),
        (200, "application/json", b"{"),
        (400, "application/json", b'{"error": {"message": "m"}}'),
        (
            200,
            "text/event-stream",
            b'data: {"error": {"message": "m", "type": "t", "param": null, "code": "internal_error"}}\n\n',
        ),
    ],
)
def test_a_wrong_answer_is_noticed(status: int, kind: str, body: bytes) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check_answer(status, kind, body)

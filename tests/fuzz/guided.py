"""A search of one target, guided by coverage: python -m tests.fuzz.guided TARGET [--seconds S] [--seed N]

Needs the atheris package, which is in the extra "fuzz". Inputs that reach new branches are kept, and changed
further. A case that fails ends the search, and is kept for --replay.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import msgspec

from tests.fuzz.case import Case
from tests.fuzz.target import Target
from tests.fuzz.targets.catalogue import CATALOGUE

# Short cases: what a new branch is due to is found again among few pieces.
MAX_PIECES = 24
NUM_FIRST_CASES = 200
MAX_CASE_BYTES = 2**18


def decode(data: bytes) -> Case:
    """Read what the search has kept; what is no case is an empty one."""
    try:
        return msgspec.msgpack.decode(data, type=Case)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []


def mutate_case(target: Target, rng: random.Random, case: Case) -> Case:
    """Change, repeat, leave out or add pieces."""
    if not case or rng.random() < 0.1:
        case = case + target.draw(rng)[:4]
    place = int(rng.random() * len(case))
    kind = rng.random()
    if kind < 0.7:
        case[place] = target.mutate(rng, case[place])
    elif kind < 0.8:
        case.insert(place, case[int(rng.random() * len(case))])
    elif kind < 0.9 and len(case) > 1:
        del case[place]
    else:
        case.insert(place, target.draw(rng)[0])
    return case[:MAX_PIECES]


def search(atheris: ModuleType, target: Target, folder: Path, seconds: float, seed: int) -> None:
    """Search until the time is over, or a case fails: then the process ends, with status 77."""
    rng = random.Random(seed)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(NUM_FIRST_CASES):
        (corpus / str(number)).write_bytes(msgspec.msgpack.encode(target.draw(rng)[:4]))

    def run(data: bytes) -> None:
        case = decode(data)
        if case:
            target.run(case)

    def mutate(data: bytes, max_size: int, drawn: int) -> bytes:
        changed = msgspec.msgpack.encode(mutate_case(target, random.Random(drawn), decode(data)))
        return changed if len(changed) <= max_size else data

    limits = ["-timeout=60", "-rss_limit_mb=4096", f"-max_len={MAX_CASE_BYTES}", "-print_final_stats=1"]
    times = [f"-max_total_time={max(1, round(seconds))}", f"-seed={seed % 2**31 or 1}"]
    words = ["fuzz", *limits, *times, f"-artifact_prefix={folder}/", str(corpus)]
    atheris.Setup(words, run, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("target", choices=list(CATALOGUE))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    try:
        import atheris
    except ImportError:
        parser.error("install the atheris package first; python -m tests.fuzz needs none")
    logging.disable(logging.CRITICAL)
    with atheris.instrument_imports(include=["splitserve"]):
        target = CATALOGUE[flags.target].make()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    print(
        f"run what fails again with: python -m tests.fuzz --target {flags.target} --replay {folder}/crash-..."
    )
    with contextlib.closing(target):
        search(atheris, target, folder, flags.seconds, flags.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Mutated input without end: python -m tests.fuzz [--seconds S | --count N] [--target NAME] ...

Every target (tests/fuzz/targets) runs in a process of its own, or several that share its work, for its share
of the time or until it has run so many frames, files or requests; one target after the other. A case that
fails is made small and kept, one that kills its process or hangs is kept as it is; both are named with the
command that runs them again, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from splitserve.engine_core.process.logs import configure_logging
from tests.fuzz.case import load
from tests.fuzz.folders import memory_folder
from tests.fuzz.run_target import Finding, Plan, replay_hint, run_target
from tests.fuzz.targets.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
# Most cases take milliseconds, those on real sockets a second; with a case that fails it is made small, too.
CASE_LIMIT_S = 120.0
# What a process ends with that has found something and said so; 1 is any other exception.
FOUND = 3


def positive(text: str) -> int:
    """Read a number of at least 1."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--seconds", type=float, default=60.0, help="of all targets together")
    much.add_argument(
        "--count", type=positive, default=0, help="executions of each target, however long it takes"
    )
    parser.add_argument(
        "--processes", type=positive, default=1, metavar="N", help="of each target; they share its count"
    )
    parser.add_argument("--seed", type=int, help="draws the same cases again, as far as the time goes")
    parser.add_argument("--target", action="append", choices=list(CATALOGUE), help="only these")
    parser.add_argument(
        "--replay", type=Path, metavar="CASE", help="run this file of the target, nothing else"
    )
    parser.add_argument("--folder", type=Path, help="for cases that fail; a new one by default")
    parser.add_argument("--here", action="store_true", help="run the one target in this process")
    flags = parser.parse_args(arguments)
    if (flags.replay or flags.here) and len(flags.target or ()) != 1:
        parser.error("--replay and --here take exactly one --target")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    flags = parse(arguments)
    if flags.replay:
        return replay(flags.target[0], flags.replay)
    seed = secrets.randbits(40) if flags.seed is None else flags.seed
    folder = flags.folder or Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory_folder()))
    if flags.here:
        return run_here(Plan(flags.target[0], flags.seconds, seed, folder, flags.count))
    print(f"seed {seed}, cases that fail go to {folder}", flush=True)
    names = flags.target or list(CATALOGUE)
    shares = sum(CATALOGUE[name].share for name in names)
    plans = [
        Plan(name, flags.seconds * CATALOGUE[name].share / shares, seed, folder, flags.count)
        for name in names
    ]
    failed = [plan.name for plan in plans if not run_together(plan.shared(flags.processes))]
    if not flags.folder:
        # Unless something is kept in it.
        with contextlib.suppress(OSError):
            folder.rmdir()
    print(f"failed: {', '.join(failed)}" if failed else "passed")
    return 1 if failed else 0


def run_together(plans: Sequence[Plan]) -> bool:
    """Run the shares of a target at once; returns whether all passed."""
    with ThreadPoolExecutor(len(plans)) as threads:
        return all(list(threads.map(run_apart, plans)))


def run_apart(plan: Plan) -> bool:
    """Run a target in a process of its own; returns whether it passed."""
    command = [sys.executable, "-m", "tests.fuzz", "--here", "--target", plan.name]
    command += ["--seed", str(plan.seed), "--folder", str(plan.folder)]
    command += ["--count", str(plan.num_wanted)] if plan.num_wanted else ["--seconds", str(plan.seconds)]
    # What libraries print of their own panics is not wanted, the last words of a dead process are.
    errors = plan.folder / f"{plan.name}-{plan.seed}.stderr"
    environment = {**os.environ, "RUST_BACKTRACE": "0"}
    with errors.open("wb") as stream:
        popen = subprocess.Popen(command, cwd=ROOT, stderr=stream, env=environment)
        status = _wait(popen, plan.running)
    if status not in (0, FOUND):
        words = errors.read_text(errors="replace")[-3000:]
        print(f"{plan.name}: the process ended with {status}\n{words}")
        if plan.running.exists():
            print(replay_hint(plan.running, plan.name))
    errors.unlink()
    return status == 0


def _wait(popen: subprocess.Popen[bytes], running: Path) -> int:
    """Wait for the end of a process; one whose case takes too long is told to say where it is, and to end."""
    while True:
        try:
            return popen.wait(1.0)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(FileNotFoundError):
            age_s = time.time() - running.stat().st_mtime
            if age_s > CASE_LIMIT_S:
                print(f"the case has been running for {age_s:.0f} s", flush=True)
                popen.send_signal(signal.SIGABRT)
                return popen.wait()


def run_here(plan: Plan) -> int:
    """Run a target in this process."""
    # Log lines are made as in production, and written to where nobody reads them.
    configure_logging("info")
    faulthandler.enable()
    target = CATALOGUE[plan.name].make()
    with contextlib.closing(target):
        try:
            run_target(target, plan, lambda line: print(line, flush=True))
        except Finding as finding:
            print(finding, flush=True)
            return FOUND
    return 0


def replay(name: str, path: Path) -> int:
    """Run one case; its failure comes with its own traceback."""
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.closing(CATALOGUE[name].make()) as target:
            count = target.run(load(path))
            target.finish()
    finally:
        logging.disable(logging.NOTSET)
    print(f"{path}: {count} {target.what}, none failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

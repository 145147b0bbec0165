"""Compares SplitServe with other engines on this machine.

    python -m benchmarks.compare setup DIR [--peers all|none|vllm,llamacpp,...] [--models tiny,small,medium]
    python -m benchmarks.compare run DIR [--models ...] [--scenarios ...] [--engines ...] [--rounds N]
                                         [--isa avx2]
    python -m benchmarks.compare table FILE
    python -m benchmarks.compare plot FILE SVG

`setup` makes random models and the peers' virtual environments below DIR; what is there is kept. `run` lets
the engines take turns and writes FILE (DIR/results.json unless --json says otherwise). A peer that is not
installed is left out. docs/performance.md says what the scenarios are.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.compare import results
from benchmarks.compare.engines import ENGINES
from benchmarks.compare.engines.base import NUM_CORES
from benchmarks.compare.held import ISAS
from benchmarks.compare.scenarios import OFFLINE, ONLINE
from benchmarks.compare.shapes import SHAPES, USUAL_MODELS
from benchmarks.compare.table import report

PEERS = sorted({engine.venv for engine in ENGINES.values() if engine.venv})


def setup(options: argparse.Namespace) -> int:
    """Make models and peers; 1 if something could not be made."""
    from benchmarks.compare.setup import make_all

    return make_all(options.dir.resolve(), options.models, options.peers)


def run(options: argparse.Namespace) -> int:
    """Measure and print; 1 if a model is missing."""
    from benchmarks.compare.run import Plan, Run

    root = options.dir.resolve()
    missing = [name for name in options.models if not (root / "models" / name / "config.json").exists()]
    if missing:
        print(
            f"no such models: {missing}. Make them: python -m benchmarks.compare setup {root}",
            file=sys.stderr,
        )
        return 1
    output = options.json or root / "results.json"
    plan = Plan(root, options.models, options.scenarios, options.engines, options.rounds, output, options.isa)
    measurement = Run(plan, secrets.randbits(32))
    measurement.results.machine = describe_machine(options.rounds)
    if options.isa:
        measurement.results.machine["held to"] = options.isa
    for name in options.models:
        measurement.model(name)
    measurement.results.save(output)
    print("\n" + report(measurement.results))
    return 0


def table(options: argparse.Namespace) -> int:
    """Print the tables of a file."""
    print(report(results.load(options.file)))
    return 0


def plot(options: argparse.Namespace) -> int:
    """Draw tok/s against concurrency; 1 if nothing was measured over HTTP."""
    from benchmarks.compare.plot import draw

    if not draw(results.load(options.file).turns, options.svg):
        print(f"{options.file} has no scenario over HTTP", file=sys.stderr)
        return 1
    return 0


def describe_machine(rounds: int) -> dict[str, str]:
    """Return date, processor and what else a reader of the tables wants to know."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": models[0] if models else "unknown",
        "cores": str(NUM_CORES),
        "memory": f"{memory / 2**30:.0f} GiB",
        "rounds": str(rounds),
    }


def _list_of(known: list[str]) -> Callable[[str], list[str]]:
    """Return an argparse type: names separated by commas, "all" or "none"."""

    def parse(text: str) -> list[str]:
        names = {"all": known, "none": []}.get(text, text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return names

    return parse


def _command(
    commands: Any, name: str, function: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text)
    command.set_defaults(run=function)
    return command


def _add_names(
    command: argparse.ArgumentParser, flag: str, known: list[str], default: list[str] | None = None
) -> None:
    command.add_argument(
        flag, type=_list_of(known), default=default or known, metavar="NAMES", help=", ".join(known)
    )


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = _command(commands, "setup", setup, "make models and peers")
    command.add_argument("dir", type=Path)
    _add_names(command, "--models", list(SHAPES), USUAL_MODELS)
    _add_names(command, "--peers", PEERS)
    command = _command(commands, "run", run, "measure")
    command.add_argument("dir", type=Path)
    _add_names(command, "--models", list(SHAPES), USUAL_MODELS)
    _add_names(command, "--scenarios", [*OFFLINE, *ONLINE])
    usual = [name for name, engine in ENGINES.items() if not engine.only_by_name]
    _add_names(command, "--engines", list(ENGINES), usual)
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--isa", choices=ISAS, default="", help="instruction set that all are held to")
    command.add_argument("--json", type=Path, help="file for the figures")
    command = _command(commands, "table", table, "print the tables of a file")
    command.add_argument("file", type=Path)
    command = _command(commands, "plot", plot, "draw tok/s against concurrency")
    command.add_argument("file", type=Path)
    command.add_argument("svg", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run the command; return its exit code."""
    # Ends the engines that were started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = parse_options()
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())

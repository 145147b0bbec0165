"""The command line of one worker process, started by an engine-core: `python -m splitserve.worker.cli`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from splitserve.engine_core.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.process.logs import configure_logging
from splitserve.engine_core.settings.arguments import add_flags, given_values, make_settings
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import declared
from splitserve.engine_core.settings.worker_settings import WorkerPlace
from splitserve.worker.death_signal import end_with_parent
from splitserve.worker.loop import run


def read_place(argv: Sequence[str]) -> WorkerPlace:
    """Parse and check the command line.

    Raises:
        ConfigError: names the flag that is missing or out of range.
        SystemExit: a flag is unknown or malformed; argparse has printed why.
    """
    parser = CommandParser(prog="worker", allow_abbrev=False, description="One rank of an engine-core.")
    settings = declared(WorkerPlace)
    add_flags(parser, settings)
    return make_settings(WorkerPlace, given_values(parser.parse_args(argv), settings))


def main() -> int:
    """Run a worker as a process of its own; returns its exit code."""
    parent_pid = os.getppid()
    end_with_parent()
    # Ctrl-C reaches the whole process group, but the engine decides when its workers exit.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return run_worker(read_place(sys.argv[1:]), parent_pid)
    except ConfigError as error:
        print(f"worker: {error}", file=sys.stderr)
        return EXIT_CONFIG


def run_worker(place: WorkerPlace, parent_pid: int, keys: ClientKeys | None = None) -> int:
    """Run a worker in this process until it exits.

    Args:
        place: address of its engine and its place among the ranks.
        parent_pid: its engine, or whoever stands for it; see run().
        keys: for an engine on another machine.

    Returns:
        The exit code, see docs/worker.md.

    Raises:
        ConfigError: the engine's address cannot be used.
    """
    _let_idle_threads_sleep()
    # Until the engine sends its log settings.
    configure_logging("info")
    if os.getppid() != parent_pid:
        return EXIT_OK
    return run(place, parent_pid, keys)


def _let_idle_threads_sleep() -> None:
    """Keep idle OpenMP threads from spinning; must run before torch loads OpenMP.

    By default they spin for milliseconds, competing with the engine and the frontends for the cores. With
    seven busy processes on two cores, a decode step of one row of a 6M-parameter model took 0.7 to 0.9 ms
    without spinning and 264 ms with the default. The best case with spinning, on idle cores, was 0.4 ms.
    A setting made by the operator takes precedence.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


if __name__ == "__main__":
    sys.exit(main())

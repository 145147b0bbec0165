"""The engine-core command: parse, validate, resolve the model, run the busy loop, exit codes for errors.

exit code   meaning
0           ended by a signal after draining
1           a bug of ours, see the traceback
2           a flag or configuration value is wrong
3           the model cannot be served; with --fit: it does not fit
4           the worker was lost before it was ready, or again and again
128 + N     ended at once by a second signal N
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from splitserve.engine_core.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_MODEL, EXIT_OK, EXIT_WORKER

if TYPE_CHECKING:
    from splitserve.engine_core.clock import Clock
    from splitserve.engine_core.config import EngineConfig
    from splitserve.engine_core.executor.base import Executor

DEMO_MODEL_NAME = "splitserve-demo"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    from splitserve.engine_core.config import EngineConfig
    from splitserve.engine_core.errors import ConfigError
    from splitserve.engine_core.process.standard_streams import open_standard_streams
    from splitserve.engine_core.settings.arguments import given_values, make_settings
    from splitserve.engine_core.settings.setting import declared

    open_standard_streams()
    args = make_parser().parse_args(argv)
    try:
        config = make_settings(EngineConfig, given_values(args, declared(EngineConfig)))
    except ConfigError as error:
        return _fail(str(error), EXIT_CONFIG)
    return _run(config)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; building it loads nothing heavy."""
    from splitserve.engine_core.config import EngineConfig
    from splitserve.engine_core.process.version import software_version
    from splitserve.engine_core.settings.parser import CommandParser
    from splitserve.engine_core.settings.setting import declared
    from splitserve.engine_core.settings.sources import add_settings

    parser = CommandParser(
        prog="engine-core",
        allow_abbrev=False,
        description="Schedules requests onto a model's worker processes; api-frontends connect to it.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {software_version()}")
    add_settings(parser, declared(EngineConfig))
    return parser


def _run(config: EngineConfig) -> int:
    from splitserve.engine_core.clock import SystemClock
    from splitserve.engine_core.errors import ConfigError, ModelLoadError, WorkerError
    from splitserve.engine_core.process.kill_points import reach
    from splitserve.engine_core.process.logs import configure_logging
    from splitserve.engine_core.process.standby import wait_until_needed
    from splitserve.engine_core.server.busy_loop import BusyLoop

    configure_logging(config.log_level, config.log_format)
    clock = SystemClock()
    try:
        config = _resolve(config)
        _check(config)
        executor = _executor(config, clock)
        reach("engine.prepared")
        if config.fit:
            return _fit(config, executor, clock)
        if config.standby_fd is not None and not wait_until_needed(config.standby_fd):
            return EXIT_OK
        _print_configuration(config)
        return BusyLoop(config, executor, clock).run()
    except ConfigError as error:
        return _fail(str(error), EXIT_CONFIG)
    except ModelLoadError as error:
        return _fail(str(error), EXIT_MODEL)
    except WorkerError as error:
        return _fail(str(error), EXIT_WORKER)
    except KeyboardInterrupt:
        return 128 + 2
    except Exception:
        logging.getLogger("engine_core").exception("unexpected error")
        return EXIT_FAILED


def _resolve(config: EngineConfig) -> EngineConfig:
    """Turn the model's name into a directory; clients keep using the name. Other folders become absolute."""
    from pathlib import Path

    import msgspec

    from splitserve.engine_core.checkpoint.source import resolve_model
    from splitserve.engine_core.errors import ModelLoadError
    from splitserve.engine_core.settings.adapter_settings import named_adapters
    from splitserve.engine_core.settings.speculation import without_model

    names = config.served_model_names or [config.model or DEMO_MODEL_NAME]
    try:
        path = str(resolve_model(config.model))
    except ModelLoadError:
        # The simulation needs no files, and takes the vocabulary of the model only if there is one.
        if config.model or config.executor != "simulated":
            raise
        path = ""
    draft = "" if config.speculation is None else config.speculation.model
    adapters = {name: str(Path(path).absolute()) for name, path in named_adapters(config.lora).items()}
    return msgspec.structs.replace(
        config,
        served_model_names=names,
        model=path,
        lora=[f"{name}={directory}" for name, directory in adapters.items()],
        lora_dir=str(Path(config.lora_dir).absolute()) if config.lora_dir else "",
        speculative_model=str(resolve_model(draft)) if draft else "",
        speculative_config=without_model(config.speculative_config),
    )


def _check(config: EngineConfig) -> None:
    """Look for faults of the model before a worker is started, which takes seconds to find them."""
    from pathlib import Path

    from splitserve.engine_core.model_check import check_before_start

    if config.model and not _has_served(config):
        for note in check_before_start(config, Path(config.model)):
            logging.getLogger("engine_core").warning("%s", note)


def _has_served(config: EngineConfig) -> bool:
    """Whether a predecessor's workers have loaded the model: its files need no second look."""
    if config.executor != "multiproc":
        return False
    from splitserve.engine_core.executor.local_workers import has_served

    return has_served(config)


def _fit(config: EngineConfig, executor: Executor, clock: Clock) -> int:
    """Print what the model takes and what fits; nothing is loaded."""
    from splitserve.engine_core.fit.measure import ask_workers
    from splitserve.engine_core.fit.report import FitReport

    report = FitReport(config, ask_workers(executor, clock, config.load_timeout_s))
    print("\n".join(report.lines), flush=True)
    return EXIT_OK if report.fits else EXIT_MODEL


def _executor(config: EngineConfig, clock: Clock) -> Executor:
    if config.executor == "simulated":
        from splitserve.engine_core.executor.simulated.executor import SimulatedExecutor
        from splitserve.engine_core.executor.simulated.model import simulated_model

        return SimulatedExecutor(
            clock,
            simulated_model(config.model),
            step_time_s=config.simulated_step_ms / 1000,
            hang_deadline_s=config.step_timeout_s,
        )
    from splitserve.engine_core.executor.workers import WorkersExecutor

    if config.executor == "ray":
        from splitserve.engine_core.executor.ray_workers import RayWorkers

        return WorkersExecutor(config, clock, RayWorkers(config))
    from splitserve.engine_core.executor.local_workers import LocalWorkers, keeping_folder

    # Those of a running engine are left alone by one that only asks.
    kept = None if config.fit else keeping_folder(config)
    return WorkersExecutor(config, clock, LocalWorkers(config, kept=kept))


def _print_configuration(config: EngineConfig) -> None:
    import msgspec

    from splitserve.engine_core.process.logs import log_event
    from splitserve.engine_core.process.version import software_version

    log = logging.getLogger("engine_core")
    log_event(log, logging.INFO, "engine-core", version=software_version(), **msgspec.structs.asdict(config))


def _fail(message: str, code: int) -> int:
    print(f"engine-core: error: {message}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())

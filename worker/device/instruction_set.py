"""Which instruction set the CPU's kernels use, given the setting and the processor."""

from __future__ import annotations

import logging

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.ops.cpu import ops

logger = logging.getLogger(__name__)


def use_isa(requested: str) -> None:
    """Use the kernels of an instruction set, process-wide, and log which; "auto" leaves the one in use.

    Raises:
        ConfigError: this processor or this build lacks it; says which there are.
    """
    there = ops.cpu_isas()
    if requested != "auto":
        if requested not in there:
            raise ConfigError(
                f"--isa {requested} cannot be used: this processor or build has {', '.join(there)}"
            )
        ops.set_isa(requested)
    log_event(logger, logging.INFO, "instruction_set", name=ops.cpu_isa(), best=there[-1])

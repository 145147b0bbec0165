"""engine-core with the simulated executor, which also notes when each step was over.

Usage: python -m benchmarks.load.timed_engine TIMES [flags of engine-core]

TIMES gets a float64 per step, on time.time(): when the simulated worker had the step's tokens. Every token is
one character, so that the text of a stream says how many tokens it has: right_text().
"""

from __future__ import annotations

import json
import string
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from splitserve.engine_core import cli
from splitserve.engine_core.checkpoint.source import resolve_model
from splitserve.engine_core.clock import Clock
from splitserve.engine_core.executor.simulated import executor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.ipc.worker_messages import FromWorkerMessage, ModelRunnerOutput

# 61 of them: no common way of losing or repeating tokens takes a multiple of a prime.
CHARACTERS = (string.ascii_letters + string.digits)[:61]


def right_text(num_tokens: int) -> str:
    """Return the text of so many tokens."""
    return (CHARACTERS * (num_tokens // len(CHARACTERS) + 1))[:num_tokens]


def token_ids() -> tuple[int, ...]:
    """Return the ids of CHARACTERS in the demo model's vocabulary."""
    vocabulary = json.loads((resolve_model("") / "tokenizer.json").read_text())["model"]["vocab"]
    return tuple(vocabulary[character] for character in CHARACTERS)


class TimedExecutor(executor.SimulatedExecutor):
    """Notes when each step was due."""

    def __init__(self, clock: Clock, model: SimulatedModel, **more: Any) -> None:
        rule = replace(model.rule, cycle_token_ids=token_ids())
        super().__init__(clock, replace(model, rule=rule), **more)
        self._times = Path(sys.argv[1]).open("ab", buffering=0)  # noqa: SIM115 - open as long as the process
        self._offset_s = time.time() - clock.monotonic()

    def receive(self) -> list[FromWorkerMessage]:
        """Hand out what is due."""
        due_s = [due.time_s for due in self._due]
        messages = super().receive()
        for message, at_s in zip(messages, due_s, strict=False):
            if isinstance(message, ModelRunnerOutput):
                self._times.write(struct.pack("d", at_s + self._offset_s))
        return messages


def main() -> int:
    """Run engine-core with this executor."""
    executor.SimulatedExecutor = TimedExecutor  # type: ignore[assignment,misc]
    return cli.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())

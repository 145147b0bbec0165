"""How does this process have an engine generate offline, in that engine's own Python?"""

from __future__ import annotations

import json
import select
from pathlib import Path
from typing import Any

from benchmarks.compare.engines.base import Engine
from benchmarks.compare.held import environment_of
from benchmarks.compare.processes import EngineError, EngineProcess

START_S = 300.0
CALL_S = 600.0


class OfflineEngine:
    """An engine with one model in a child process; ready when made.

    Args:
        isa: what it is held to, "" for nothing.

    Attributes:
        instructions: which it uses, in its own words.

    Raises:
        EngineError: it could not be started.
    """

    def __init__(self, engine: Engine, root: Path, model: Path, log: Path, isa: str = "") -> None:
        module = ["-m", "benchmarks.compare.offline_child", engine.name, str(model)]
        command = [engine.python(root), *module]
        environment = environment_of(engine, root, isa)
        self.process = EngineProcess(command, environment, log, pausable=engine.pausable, pipes=True)
        try:
            self.instructions = str(self._answer(START_S)["instructions"])
        except BaseException:
            # Whoever ends this program ends what it was starting, too.
            self.process.close()
            raise

    def generate(self, prompts: list[list[int]], num_new: int) -> float:
        """Return the seconds that completing the prompts took; raises EngineError."""
        self.process.check_alive()
        command = json.dumps({"prompts": prompts, "num_new": num_new})
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        return float(self._answer(CALL_S)["seconds"])

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        # One line per command, so nothing is ever left in the file's own buffer.
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise EngineError(f"no answer within {timeout_s:.0f} s; see {self.process.log}")
        line = self.process.stdout.readline()
        if not line:
            raise EngineError(f"ended; see {self.process.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

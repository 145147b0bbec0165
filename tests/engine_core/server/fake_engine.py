"""engine-core with the fake worker in place of the real one.

python -m tests.engine_core.server.fake_engine BEHAVIOUR [flags of engine-core]
"""

from __future__ import annotations

import functools
import sys

from engine_core import cli
from engine_core.config import EngineConfig
from engine_core.executor import multiproc


def fake_argv(behaviour: str, config: EngineConfig, address: str) -> list[str]:
    return [sys.executable, "-m", "tests.engine_core.executor.fake_worker", behaviour, address]


if __name__ == "__main__":
    behaviour, flags = sys.argv[1], sys.argv[2:]
    multiproc.MultiprocExecutor = functools.partial(  # type: ignore[assignment,misc]
        multiproc.MultiprocExecutor, argv=functools.partial(fake_argv, behaviour)
    )
    sys.exit(cli.main(flags))

"""engine-core with the fake worker in place of the real one.

python -m tests.engine_core.server.fake_engine BEHAVIOUR [flags of engine-core]
"""

from __future__ import annotations

import functools
import sys

from splitserve.engine_core import cli, model_check
from splitserve.engine_core.executor import local_workers
from splitserve.engine_core.settings.worker_settings import WorkerPlace


def fake_argv(behaviour: str, place: WorkerPlace) -> list[str]:
    worker = "tests.engine_core.executor.fake_worker"
    return [sys.executable, "-m", worker, behaviour, place.connect, str(place.rank)]


if __name__ == "__main__":
    behaviour, flags = sys.argv[1], sys.argv[2:]
    local_workers.LocalWorkers = functools.partial(  # type: ignore[assignment,misc]
        local_workers.LocalWorkers, argv=functools.partial(fake_argv, behaviour)
    )
    # The model is as made up as the worker: a config.json of three fields.
    model_check.check_before_start = lambda config, directory: []
    sys.exit(cli.main(flags))

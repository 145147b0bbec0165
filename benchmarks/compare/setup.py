"""What has to be made before engines can be compared, and how large is it?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare import limits
from benchmarks.compare.engines import ENGINES
from benchmarks.compare.engines.base import Engine
from benchmarks.compare.shapes import SHAPES
from benchmarks.compare.venvs import run_logged


def make_all(root: Path, models: Sequence[str], peers: Sequence[str]) -> int:
    """Make models, then each peer and what it needs of each model; what is there is kept.

    A peer that cannot be made is reported and does not keep the others from being made.

    Returns:
        0 if everything is there, 1 if something failed.
    """
    logs = root / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    announce(models, peers)
    limits.build(root)
    for name in models:
        make_model(root, name, logs / f"model-{name}.log")
    wanted = [engine for engine in ENGINES.values() if engine.venv in peers]
    failed = [engine.name for engine in wanted if not _make_peer(engine, root, models, logs)]
    return 1 if failed else 0


def announce(models: Sequence[str], peers: Sequence[str]) -> None:
    """Print what will be made, with sizes."""
    for name in models:
        print(f"model {name}: {SHAPES[name].num_parameters * 2 / 1e6:,.0f} MB")
    for needs in dict.fromkeys(engine.needs for engine in ENGINES.values() if engine.venv in peers):
        print(needs, flush=True)


def make_model(root: Path, name: str, log: Path) -> None:
    """Write a model's checkpoint unless it is there; in a process of its own, which gives its memory back."""
    folder = root / "models" / name
    if not (folder / "config.json").exists():
        print(f"making {name}", flush=True)
        run_logged([sys.executable, "-m", "benchmarks.compare.checkpoint", str(folder)], log)


def _make_peer(engine: Engine, root: Path, models: Sequence[str], logs: Path) -> bool:
    log = logs / f"setup-{engine.venv}.log"
    print(f"making {engine.name}", flush=True)
    try:
        engine.install(root, log)
        for name in models:
            engine.prepare(root, root / "models" / name, log)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"{engine.name} could not be made: {error}; see {log}", flush=True)
        return False
    return True

"""The command line, and what must not be loaded before it has been read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.worker_messages import Configure
from splitserve.engine_core.settings.worker_settings import WorkerPlace, WorkerSettings
from splitserve.worker.cli import read_place
from splitserve.worker.config import WorkerConfig
from tests.worker.loop.engine import ROOT

REQUIRED = ["--connect", "ipc:///tmp/w.sock", "--rank", "1"]


def test_a_worker_is_told_where_it_is() -> None:
    words = ["--rendezvous", "tcp://10.0.0.5:4711", "--rendezvous-fd", "9"]
    place = WorkerPlace(connect="ipc:///tmp/w.sock", rank=1)
    assert read_place(REQUIRED) == place
    meeting = WorkerPlace(connect=place.connect, rank=1, rendezvous="tcp://10.0.0.5:4711", rendezvous_fd=9)
    assert read_place([*REQUIRED, *words]) == meeting


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--rank", "-1"),
        ("--rank", "64"),
        ("--connect", "http://x"),
        ("--rendezvous", "10.0.0.5:1"),
        ("--rendezvous-fd", "-2"),
    ],
)
def test_values_out_of_range_are_refused_by_name(flag: str, value: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        read_place([*REQUIRED, f"{flag}={value}"])


def test_a_place_without_a_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="rank"):
        read_place(REQUIRED[:2])


EIGHT_RANKS = WorkerSettings(tensor_parallel_size=4, pipeline_parallel_size=2, block_size=8)


@pytest.mark.parametrize(
    ("rank", "told", "text"),
    [
        (8, Configure(EIGHT_RANKS), "--rank must be from 0 to 7, got 8"),
        (7, Configure(EIGHT_RANKS, 9), "the number of ranks on a machine must be from 1 to 8, got 9"),
        (7, Configure(EIGHT_RANKS, 1, float("nan")), "the longest wait for other ranks must be from 0.1"),
    ],
)
def test_a_rank_that_does_not_fit_the_engine_is_refused(rank: int, told: Configure, text: str) -> None:
    place = WorkerPlace(connect="ipc:///x", rank=rank, rendezvous="file:///x/y")
    with pytest.raises(ConfigError, match=text):
        WorkerConfig.of(place, told)


def test_a_worker_has_its_place_and_the_settings_of_its_engine() -> None:
    place = WorkerPlace(connect="ipc:///x", rank=7, rendezvous="file:///x/y")
    config = WorkerConfig.of(place, Configure(EIGHT_RANKS, 2, 1.5))
    assert (config.place, config.block_size) == (place, 8)
    assert (config.num_local_ranks, config.exchange_timeout_s) == (2, 1.5)


def test_a_bad_value_exits_with_code_2_and_says_why() -> None:
    argv = [sys.executable, "-m", "splitserve.worker.cli", *REQUIRED, "--rank=64"]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (2, "worker: --rank must be from 0 to 63, got 64\n")


def test_the_hello_is_sent_before_torch_is_imported() -> None:
    code = "import sys, splitserve.worker.cli, splitserve.worker.loop; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def test_loading_a_worker_imports_neither_the_compiler_nor_transformers() -> None:
    code = (
        "import sys, splitserve.worker.worker\n"
        "heavy = {'torch._dynamo', 'torch._inductor', 'transformers', 'sympy'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr

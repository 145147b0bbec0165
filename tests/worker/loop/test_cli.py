"""The command line, and what must not be loaded before it has been read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from splitserve.engine_core.errors import ConfigError
from splitserve.worker.cli import read_config
from splitserve.worker.config import WorkerConfig
from tests.worker.loop.engine import ROOT

REQUIRED = ["--connect", "ipc:///tmp/w.sock", "--model", "/m"]
FLAGS = {
    "block_size": 32,
    "max_num_seqs": 7,
    "max_num_batched_tokens": 99,
    "max_model_len": 1000,
    "num_threads": 5,
    "kv_cache_memory_bytes": 1 << 30,
}


def test_defaults_are_those_of_the_config() -> None:
    assert read_config(REQUIRED) == WorkerConfig(model="/m", connect="ipc:///tmp/w.sock")


@pytest.mark.parametrize(("name", "value"), FLAGS.items())
def test_every_number_has_a_flag(name: str, value: int) -> None:
    config = read_config([*REQUIRED, "--" + name.replace("_", "-"), str(value)])
    assert getattr(config, name) == value


def test_a_rank_of_several_is_told_where_it_stands_and_where_they_meet() -> None:
    words = ["--tensor-parallel-size", "4", "--pipeline-parallel-size", "2", "--rank", "7"]
    words += ["--num-local-ranks", "2"]
    meeting = ["--rendezvous", "file:///tmp/x/rendezvous", "--exchange-timeout", "4.5"]
    config = read_config([*REQUIRED, *words, *meeting])
    assert (config.tensor_parallel_size, config.pipeline_parallel_size) == (4, 2)
    assert (config.rank, config.num_local_ranks) == (7, 2)
    assert (config.rendezvous, config.exchange_timeout_s) == ("file:///tmp/x/rendezvous", 4.5)
    with pytest.raises(ConfigError, match="--rendezvous"):
        read_config([*REQUIRED, *words])


def test_dtype_has_a_flag() -> None:
    assert read_config([*REQUIRED, "--dtype", "bfloat16"]).dtype == "bfloat16"


def test_quantization_has_a_flag() -> None:
    assert read_config([*REQUIRED, "--quantization", "int4"]).quantization == "int4"


def test_batch_invariance_is_a_switch() -> None:
    assert read_config([*REQUIRED, "--batch-invariant"]).batch_invariant


def test_enforce_eager_is_a_switch() -> None:
    assert read_config([*REQUIRED, "--enforce-eager"]).enforce_eager


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--rank", "-1"),
        ("--rank", "1"),
        ("--tensor-parallel-size", "0"),
        ("--tensor-parallel-size", "65"),
        ("--pipeline-parallel-size", "0"),
        ("--num-local-ranks", "2"),
        ("--exchange-timeout", "nan"),
        ("--block-size", "1"),
        ("--block-size", "15"),
        ("--block-size", "257"),
        ("--max-num-seqs", "0"),
        ("--max-num-batched-tokens", "0"),
        ("--max-model-len", "-1"),
        ("--num-threads", "-1"),
        ("--device", "tpu"),
        ("--attention-backend", "best"),
        ("--gpu-memory-utilization", "1.5"),
        ("--log-level", "loud"),
        ("--kv-cache-memory-bytes", "-1"),
        ("--dtype", "int8"),
        ("--quantization", "int2"),
        ("--connect", "http://x"),
    ],
)
def test_values_out_of_range_are_refused_by_name(flag: str, value: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        read_config([*REQUIRED, flag, value])


def test_a_bad_value_exits_with_code_2_and_says_why() -> None:
    argv = [sys.executable, "-m", "splitserve.worker.cli", *REQUIRED, "--block-size", "0"]
    run = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (2, "worker: --block-size must be from 2 to 256, got 0\n")


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

"""The command line of one worker process, started by an engine-core: `python -m splitserve.worker.cli`."""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Sequence

from splitserve.engine_core.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.worker.config import WorkerConfig
from splitserve.worker.loop import run

_PR_SET_PDEATHSIG = 1


def build_parser() -> argparse.ArgumentParser:
    """The flags; each is a field of WorkerConfig, which documents and checks it."""
    defaults = WorkerConfig(model="")
    parser = argparse.ArgumentParser(prog="worker", description="One rank of an engine-core.")
    parser.add_argument("--connect", required=True, metavar="ADDR", help="the engine's worker socket")
    parser.add_argument("--model", required=True, metavar="DIR", help="checkpoint directory")
    parser.add_argument("--dtype", default=defaults.dtype, help="auto, float32, bfloat16 or float16")
    parser.add_argument("--quantization", default=defaults.quantization, help="none, int8 or int4 weights")
    parser.add_argument("--device", default=defaults.device, help="auto, cpu or cuda")
    parser.add_argument("--log-level", default=defaults.log_level, help="debug, info, warning or error")
    parser.add_argument("--attention-backend", default=defaults.attention_backend, help="auto or a name")
    parser.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=defaults.gpu_memory_utilization,
        metavar="SHARE",
        help="share of a GPU's memory to take",
    )
    for name, text in (
        ("rank", "index of this worker within its engine"),
        ("block_size", "tokens per KV block"),
        ("max_num_seqs", "rows of the batch"),
        ("max_num_batched_tokens", "most tokens of one step"),
        ("max_model_len", "longest sequence; 0: the checkpoint's limit"),
        ("num_threads", "compute threads; 0: all cores this process may use"),
        ("kv_cache_memory_bytes", "memory for the KV cache; 0: a share of what is free"),
        ("tensor_parallel_size", "ranks that part each layer among them"),
        ("pipeline_parallel_size", "stages that each hold some of the layers"),
        ("num_local_ranks", "ranks that share this machine"),
    ):
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, default=getattr(defaults, name), metavar="N", help=text)
    parser.add_argument("--batch-invariant", action="store_true", help="same bits in any batch on a GPU")
    parser.add_argument("--enforce-eager", action="store_true", help="record no decode steps")
    parser.add_argument("--rendezvous", default="", metavar="URL", help="where the ranks meet")
    parser.add_argument(
        "--rendezvous-fd",
        type=int,
        default=defaults.rendezvous_fd,
        metavar="FD",
        help="rank 0's socket that listens there, where it is tcp",
    )
    parser.add_argument(
        "--exchange-timeout",
        dest="exchange_timeout_s",
        type=float,
        default=defaults.exchange_timeout_s,
        metavar="S",
        help="longest wait for the other ranks within a step",
    )
    return parser


def read_config(argv: Sequence[str]) -> WorkerConfig:
    """Parse and check the command line.

    Raises:
        ConfigError: names the flag that is out of range.
        SystemExit: a flag is unknown, missing or malformed; argparse has said so.
    """
    flags = build_parser().parse_args(argv)
    config = WorkerConfig(
        model=flags.model,
        connect=flags.connect,
        rank=flags.rank,
        dtype=flags.dtype,
        quantization=flags.quantization,
        block_size=flags.block_size,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_model_len=flags.max_model_len,
        num_threads=flags.num_threads,
        kv_cache_memory_bytes=flags.kv_cache_memory_bytes,
        batch_invariant=flags.batch_invariant,
        enforce_eager=flags.enforce_eager,
        device=flags.device,
        attention_backend=flags.attention_backend,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        log_level=flags.log_level,
        tensor_parallel_size=flags.tensor_parallel_size,
        pipeline_parallel_size=flags.pipeline_parallel_size,
        rendezvous=flags.rendezvous,
        rendezvous_fd=flags.rendezvous_fd,
        num_local_ranks=flags.num_local_ranks,
        exchange_timeout_s=flags.exchange_timeout_s,
    )
    config.validate()
    return config


def main() -> int:
    """Run a worker as a process of its own; returns its exit code."""
    parent_pid = os.getppid()
    _end_with_parent()
    # Ctrl-C reaches the whole terminal group; when to end is the engine's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return run_worker(sys.argv[1:], parent_pid)


def run_worker(argv: Sequence[str], parent_pid: int, keys: ClientKeys | None = None) -> int:
    """Run a worker in this process, which does nothing else.

    Args:
        argv: its flags.
        parent_pid: whose end is its own.
        keys: for an engine on another machine.

    Returns:
        The exit code, see docs/worker.md.
    """
    _let_idle_threads_sleep()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    try:
        config = read_config(argv)
        logging.getLogger().setLevel(config.log_level.upper())
        if os.getppid() != parent_pid:
            return EXIT_OK
        return run(config, parent_pid, keys)
    except ConfigError as error:
        print(f"worker: {error}", file=sys.stderr)
        return EXIT_CONFIG


def _end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, also in the middle of a load or a step."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _let_idle_threads_sleep() -> None:
    """Keep OpenMP's threads from spinning while they wait; has to come before torch loads OpenMP.

    They spin for milliseconds by default, against the engine and the frontends that share the cores. With
    seven busy processes on two cores, a decode step of one row of a 6M-parameter model took 0.7 to 0.9 ms
    without spinning and 264 ms with the default. Spinning's best, while the cores happened to be free, was
    0.4 ms. An operator's own setting stands.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


if __name__ == "__main__":
    sys.exit(main())

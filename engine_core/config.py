"""The configuration of one engine-core: built once, from the command line, and validated before use."""

from __future__ import annotations

import os
import re

import msgspec

from engine_core.errors import ConfigError
from engine_core.ipc.addresses import check_keys

DTYPES = ("auto", "float32", "bfloat16", "float16")
POLICIES = ("fcfs", "priority")
EXECUTORS = ("multiproc", "simulated")
LOG_LEVELS = ("debug", "info", "warning", "error")


def runtime_directory() -> str:
    """Return where this user's sockets live by default: private to the user, gone after a reboot."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    # The variable outlives its directory in shells opened with su or sudo.
    return os.path.join(base, "splitserve") if os.path.isdir(base) else f"/tmp/splitserve-{os.getuid()}"


def default_engine_address() -> str:
    """Return the address an engine-core listens on, and an api-frontend looks for, when none is given."""
    return f"ipc://{runtime_directory()}/engine.sock"


def software_version() -> str:
    """Return the version of the installed distribution, "0+unknown" when run from a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("splitserve")
    except PackageNotFoundError:
        return "0+unknown"


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits the scheduler works within; all counts are tokens, blocks or requests.

    Attributes:
        max_num_seqs: rows of the running batch.
        max_num_batched_tokens: token budget of one step.
        max_prefill_tokens: prefill tokens of one request per step; 0 means up to the budget.
        max_num_waiting: bound of the waiting queue; beyond it requests are rejected with 429.
        max_model_len: longest sequence, prompt and output together.
        block_size: tokens per KV block.
        num_blocks: KV blocks of the pool.
        policy: "fcfs" or "priority".
        enable_prefix_caching: reuse the KV of equal prefixes.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_prefill_tokens: int = 0
    max_num_waiting: int = 4096
    max_model_len: int = 2048
    block_size: int = 16
    num_blocks: int = 1024
    policy: str = "fcfs"
    enable_prefix_caching: bool = True


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine-core is told on its command line.

    Attributes:
        model: checkpoint directory.
        listen: ZMQ address frontends connect to, ipc://PATH or tcp://HOST:PORT.
        served_model_names: names clients use; the first is the main one.
        engine_id: shown in logs, metrics and errors.
        executor: "multiproc" starts worker processes, "simulated" needs no model weights.
        dtype: "auto" takes the checkpoint's.
        max_model_len: 0 takes the checkpoint's limit.
        kv_cache_memory_bytes: 0 lets the worker choose.
        num_blocks: overrides the size of the KV pool; 0 derives it from memory.
        num_threads: compute threads of a worker; 0 takes all cores the process may use.
        drain_timeout_s: how long running requests may go on after SIGTERM.
        lease_s: a frontend silent for longer loses its requests.
        step_timeout_s: a worker that takes longer for one step counts as lost.
        allow_insecure_tcp: permit TCP beyond loopback without keys.
        curve_dir: folder with this engine's CURVE key pair and the public keys it accepts.
        simulated_step_ms: step time of the simulated executor.
        log_level: "debug", "info", "warning" or "error".
    """

    model: str
    listen: str = msgspec.field(default_factory=default_engine_address)
    served_model_names: list[str] = []
    engine_id: str = "engine-0"
    executor: str = "multiproc"
    dtype: str = "auto"
    max_model_len: int = 0
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_prefill_tokens: int = 0
    max_num_waiting: int = 4096
    policy: str = "fcfs"
    enable_prefix_caching: bool = True
    kv_cache_memory_bytes: int = 0
    num_blocks: int = 0
    num_threads: int = 0
    drain_timeout_s: float = 30.0
    lease_s: float = 10.0
    step_timeout_s: float = 60.0
    allow_insecure_tcp: bool = False
    curve_dir: str = ""
    simulated_step_ms: float = 0.0
    log_level: str = "info"

    def validate(self) -> None:
        """Check every value against its range.

        Raises:
            ConfigError: names the flag and the range.
        """
        _one_of("--dtype", self.dtype, DTYPES)
        _one_of("--scheduling-policy", self.policy, POLICIES)
        _one_of("--executor", self.executor, EXECUTORS)
        _one_of("--log-level", self.log_level, LOG_LEVELS)
        _within("--block-size", self.block_size, 1, 256)
        _within("--max-num-seqs", self.max_num_seqs, 1, 65536)
        _within("--max-num-batched-tokens", self.max_num_batched_tokens, 1, 2**20)
        _within("--max-prefill-tokens", self.max_prefill_tokens, 0, 2**20)
        _within("--max-num-waiting", self.max_num_waiting, 1, 10**6)
        _within("--max-model-len", self.max_model_len, 0, 2**24)
        _within("--kv-cache-memory-bytes", self.kv_cache_memory_bytes, 0, 2**50)
        _within("--num-blocks", self.num_blocks, 0, 2**30)
        _within("--num-threads", self.num_threads, 0, 1024)
        _within("--drain-timeout", self.drain_timeout_s, 0, 86400)
        _within("--lease", self.lease_s, 1, 3600)
        _within("--step-timeout", self.step_timeout_s, 1, 3600)
        _within("--simulated-step-ms", self.simulated_step_ms, 0, 60000)
        check_address("--listen", self.listen)
        check_keys(self.listen, bool(self.curve_dir), self.allow_insecure_tcp)


def check_address(flag: str, address: str) -> None:
    """Refuse anything but ipc://PATH and tcp://HOST:PORT.

    Raises:
        ConfigError: names the flag and the two forms.
    """
    if not re.fullmatch(r"ipc://.{1,100}|tcp://(\*|\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}", address):
        raise ConfigError(
            f"{flag} must be ipc://PATH (at most 100 characters) or tcp://HOST:PORT, got {address!r}"
        )


def _one_of(flag: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{flag} must be one of {', '.join(choices)}, got {value!r}")


def _within(flag: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{flag} must be from {low} to {high}, got {value}")

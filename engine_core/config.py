"""The configuration of one engine-core: built once, from the command line, and validated before use."""

from __future__ import annotations

import contextlib
import os
import re

import msgspec

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.addresses import check_keys

# What one message of the wire (64 MiB) surely holds: a step's prompt logprobs, at about 190 bytes a token,
# and a row with all its token ids, at 4 bytes each.
MAX_STEP_TOKENS = 2**18
MAX_SEQUENCE_TOKENS = 2**23

DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("none", "int8", "int4")
DEVICES = ("auto", "cpu", "cuda")
ATTENTION_BACKENDS = ("auto", "cpu", "cuda", "flash_attn", "torch")
POLICIES = ("fcfs", "priority", "fair")
EXECUTORS = ("multiproc", "ray", "simulated")
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_TENANT_WEIGHTS = 1000
MAX_RANKS = 64


def runtime_directory() -> str:
    """Return where this user's sockets live by default: private to the user, gone after a reboot."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    # The variable outlives its directory in shells opened with su or sudo.
    return os.path.join(base, "splitserve") if os.path.isdir(base) else f"/tmp/splitserve-{os.getuid()}"


def leave_runtime_directory(directory: str) -> None:
    """Remove a directory of sockets below the runtime directory and then that one, whichever is empty by now.

    Whoever of a server ends last finds them empty, however the others have ended.

    Args:
        directory: of this process's sockets; one elsewhere is left alone.
    """
    runtime = runtime_directory()
    if os.path.dirname(directory) == runtime:
        with contextlib.suppress(OSError):
            os.rmdir(directory)
        with contextlib.suppress(OSError):
            os.rmdir(runtime)


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


# Steps that compute for less are planned further ahead and answered two at a time.
SHORT_STEP_S = 500e-6


def max_steps_in_flight(num_stages: int) -> int:
    """Return how many steps may be planned and not yet answered: one per stage of the pipeline.

    Without one it is the step that runs and one that is there when it ends; of short steps there may be more,
    see engine_core.scheduler.run_ahead.
    """
    return max(2, num_stages)


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits the scheduler works within; all counts are tokens, blocks or requests.

    Attributes:
        max_num_seqs: rows of the running batch.
        max_num_batched_tokens: token budget of one step.
        max_prefill_tokens: prefill tokens of one request per step; 0 means up to the budget.
        watermark_percent: share of the pool (at least a block) that admission leaves free while others run.
        max_num_waiting: bound of the waiting queue; beyond it requests are rejected with 429.
        max_model_len: longest sequence, prompt and output together.
        block_size: tokens per KV block.
        num_blocks: KV blocks of the pool.
        policy: "fcfs", "priority" or "fair".
        enable_prefix_caching: reuse the KV of equal prefixes.
        tenant_weights: shares under the fair policy, 1..1000; tenants not named here have 1.
        max_waiting_tokens: bound of the prompt tokens that wait; beyond it requests are rejected with 429.
        queue_timeout_s: a request that names none waits no longer before it first runs; 0 means for ever.
        target_itl_s: a step's prefill is cut to keep steps with decoding rows this short; 0 means never.
        log_wait_s: a request that has waited so long is logged, once; 0 means never.
        num_host_blocks: blocks of the host-memory tier that evicted prefixes move to; 0 for no tier, and
            without prefix caching.
        move_block_ns: nanoseconds one block takes between pool and host tier, as measured; 0 if not known.
        victim: which row behind one in need of a block gives way: "cost" or "last", see scheduler.victims.
        num_stages: of the pipeline; with several, a row waits for its token before it is planned again.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_prefill_tokens: int = 0
    watermark_percent: int = 5
    max_num_waiting: int = 4096
    max_model_len: int = 2048
    block_size: int = 16
    num_blocks: int = 1024
    policy: str = "fcfs"
    enable_prefix_caching: bool = True
    tenant_weights: dict[str, int] = {}
    max_waiting_tokens: int = 2**22
    queue_timeout_s: float = 0.0
    target_itl_s: float = 0.0
    log_wait_s: float = 0.0
    num_host_blocks: int = 0
    move_block_ns: int = 0
    victim: str = "cost"
    num_stages: int = 1


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine-core is told on its command line.

    Attributes:
        model: checkpoint directory.
        listen: ZMQ address frontends connect to, ipc://PATH or tcp://HOST:PORT.
        served_model_names: names clients use; the first is the main one.
        engine_id: shown in logs, metrics and errors.
        executor: "multiproc" starts worker processes, "ray" does so on a Ray cluster, "simulated" needs no
            model weights.
        ray_address: the cluster, HOST:PORT, "auto" or "local"; "" takes RAY_ADDRESS, and "local" without it.
        ray_timeout_s: longest wait for the cluster, and for room on it.
        dtype: "auto" takes the checkpoint's.
        quantization: "none", or "int8" or "int4" weights, rounded while they are loaded.
        max_model_len: 0 takes the checkpoint's limit.
        kv_cache_memory_bytes: 0 lets the worker choose.
        num_blocks: overrides the size of the KV pool; 0 derives it from memory.
        kv_offload_gb: GiB of host memory for blocks that leave the pool; 0 for no tier.
        num_threads: compute threads of each worker; 0 shares all cores the process may use among them.
        tensor_parallel_size: workers that part each layer among them.
        pipeline_parallel_size: stages that each hold some of the layers.
        batch_invariant: on a GPU too, a request's tokens do not depend on what runs beside it.
        enforce_eager: the worker runs every kernel of a step by itself, and records no decode steps.
        tokenizer_check: refuse a model without the files that frontends need.
        drain_timeout_s: how long running requests may go on after SIGTERM.
        lease_s: a connected frontend that is silent for longer, and a quarter of it, loses its requests.
        step_timeout_s: a worker that takes longer for one step counts as lost.
        allow_insecure_tcp: permit TCP beyond loopback without keys.
        curve_dir: folder with this engine's CURVE key pair and the public keys it accepts.
        simulated_step_ms: step time of the simulated executor.
        log_level: "debug", "info", "warning" or "error".
        tenant_weights: NAME=W each; shares under the fair policy.
        max_waiting_tokens: bound of the prompt tokens that wait.
        queue_timeout_s: longest wait of a request that names none; 0 for ever.
        target_itl_ms: longest step while rows decode, as far as prefill decides it; 0 does not limit it.
        log_wait_s: waiting time after which a request is logged; 0 never.
        kv_events_address: where the events of the KV cache are published; "" publishes none.
        kv_events_replay_address: where subscribers ask for batches they missed; "" offers none.
        kv_events_topic: first frame of every batch.
        kv_events_buffer_steps: batches kept for those who missed some.
        device: where workers compute, "auto", "cpu" or "cuda".
        attention_backend: "auto" or one of ATTENTION_BACKENDS.
        gpu_memory_utilization: share of a GPU's memory that a worker may take.
    """

    model: str
    listen: str = msgspec.field(default_factory=default_engine_address)
    served_model_names: list[str] = []
    engine_id: str = "engine-0"
    executor: str = "multiproc"
    ray_address: str = ""
    ray_timeout_s: float = 60.0
    dtype: str = "auto"
    quantization: str = "none"
    max_model_len: int = 0
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_prefill_tokens: int = 0
    watermark_percent: int = 5
    max_num_waiting: int = 4096
    policy: str = "fcfs"
    enable_prefix_caching: bool = True
    kv_cache_memory_bytes: int = 0
    num_blocks: int = 0
    kv_offload_gb: float = 0.0
    num_threads: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    batch_invariant: bool = False
    enforce_eager: bool = False
    tokenizer_check: bool = True
    drain_timeout_s: float = 30.0
    lease_s: float = 30.0
    step_timeout_s: float = 60.0
    allow_insecure_tcp: bool = False
    curve_dir: str = ""
    simulated_step_ms: float = 0.0
    log_level: str = "info"
    tenant_weights: list[str] = []
    max_waiting_tokens: int = 2**22
    queue_timeout_s: float = 0.0
    target_itl_ms: float = 200.0
    log_wait_s: float = 10.0
    kv_events_address: str = ""
    kv_events_replay_address: str = ""
    kv_events_topic: str = ""
    kv_events_buffer_steps: int = 10_000
    device: str = "auto"
    attention_backend: str = "auto"
    gpu_memory_utilization: float = 0.9

    @property
    def num_ranks(self) -> int:
        """How many workers there are."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def output_rank(self) -> int:
        """The rank that samples: the first of the last stage."""
        return self.num_ranks - self.tensor_parallel_size

    def validate(self) -> None:
        """Check every value against its range.

        Raises:
            ConfigError: names the flag and the range.
        """
        check_choice("--dtype", self.dtype, DTYPES)
        check_choice("--quantization", self.quantization, QUANTIZATIONS)
        check_choice("--device", self.device, DEVICES)
        check_choice("--attention-backend", self.attention_backend, ATTENTION_BACKENDS)
        check_range("--gpu-memory-utilization", self.gpu_memory_utilization, 0.05, 1)
        check_choice("--scheduling-policy", self.policy, POLICIES)
        check_choice("--executor", self.executor, EXECUTORS)
        check_choice("--log-level", self.log_level, LOG_LEVELS)
        check_range("--block-size", self.block_size, 2, 256)
        if self.block_size % 2:
            raise ConfigError(f"--block-size must be even, got {self.block_size}")
        check_range("--max-num-seqs", self.max_num_seqs, 1, 65536)
        check_range("--max-num-batched-tokens", self.max_num_batched_tokens, 1, MAX_STEP_TOKENS)
        check_range("--max-prefill-tokens", self.max_prefill_tokens, 0, MAX_STEP_TOKENS)
        check_range("--watermark-percent", self.watermark_percent, 0, 90)
        check_range("--max-num-waiting", self.max_num_waiting, 1, 10**6)
        check_range("--max-model-len", self.max_model_len, 0, MAX_SEQUENCE_TOKENS)
        check_range("--kv-cache-memory-bytes", self.kv_cache_memory_bytes, 0, 2**50)
        check_range("--num-blocks", self.num_blocks, 0, 2**30)
        check_range("--kv-offload-gb", self.kv_offload_gb, 0, 2**20)
        check_range("--num-threads", self.num_threads, 0, 1024)
        self._check_ranks()
        check_range("--drain-timeout", self.drain_timeout_s, 0, 86400)
        check_range("--lease", self.lease_s, 1, 3600)
        check_range("--step-timeout", self.step_timeout_s, 1, 3600)
        check_range("--simulated-step-ms", self.simulated_step_ms, 0, 60000)
        check_range("--max-waiting-tokens", self.max_waiting_tokens, 1, 2**40)
        check_range("--queue-timeout", self.queue_timeout_s, 0, 7 * 86400)
        check_range("--target-itl-ms", self.target_itl_ms, 0, 60000)
        check_range("--log-wait", self.log_wait_s, 0, 86400)
        if parse_weights(self.tenant_weights) and self.policy != "fair":
            raise ConfigError("--tenant-weight must be given together with --scheduling-policy fair")
        if self.kv_offload_gb and not self.enable_prefix_caching:
            raise ConfigError("--kv-offload-gb finds blocks by their prefix: leave prefix caching on")
        check_address("--listen", self.listen)
        check_keys(self.listen, bool(self.curve_dir), self.allow_insecure_tcp)
        self._check_kv_events()
        self._check_ray()

    def _check_ray(self) -> None:
        check_range("--ray-timeout", self.ray_timeout_s, 1, 86400)
        if not re.fullmatch(r"|auto|local|[^/\s]{1,250}:\d{1,5}", self.ray_address):
            raise ConfigError(f"--ray-address must be HOST:PORT, auto or local, got {self.ray_address!r}")
        if self.executor != "ray":
            for name in ("ray_address", "ray_timeout_s"):
                if getattr(self, name) != getattr(_DEFAULTS, name):
                    flag = f"--{name.removesuffix('_s').replace('_', '-')}"
                    raise ConfigError(f"{flag} must be given together with --executor ray")

    def _check_ranks(self) -> None:
        check_range("--tensor-parallel-size", self.tensor_parallel_size, 1, MAX_RANKS)
        check_range("--pipeline-parallel-size", self.pipeline_parallel_size, 1, MAX_RANKS)
        sizes = "--tensor-parallel-size times --pipeline-parallel-size"
        check_range(sizes, self.num_ranks, 1, MAX_RANKS)
        if self.num_ranks > 1 and self.executor == "simulated":
            raise ConfigError(f"{sizes} must be 1 with --executor simulated")

    def _check_kv_events(self) -> None:
        addresses = {
            "--kv-events-address": self.kv_events_address,
            "--kv-events-replay-address": self.kv_events_replay_address,
        }
        for flag, address in addresses.items():
            if address:
                check_address(flag, address)
                check_keys(address, bool(self.curve_dir), self.allow_insecure_tcp)
        if self.kv_events_address and not self.enable_prefix_caching:
            raise ConfigError("--kv-events-address must be left out with --no-enable-prefix-caching")
        check_range("--kv-events-buffer-steps", self.kv_events_buffer_steps, 1, 10**6)
        if not re.fullmatch(r"[!-~]{0,256}", self.kv_events_topic):
            raise ConfigError("--kv-events-topic must be at most 256 visible ASCII characters without spaces")
        if not self.kv_events_address:
            self._check_no_kv_events()

    def _check_no_kv_events(self) -> None:
        """Refuse what would be ignored because nothing is published."""
        for name in ("kv_events_replay_address", "kv_events_topic", "kv_events_buffer_steps"):
            if getattr(self, name) != getattr(_DEFAULTS, name):
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{flag} must be given together with --kv-events-address")


_DEFAULTS = EngineConfig(model="", listen="")


def parse_weights(texts: list[str]) -> dict[str, int]:
    """Parse NAME=W of --tenant-weight; W is a whole number from 1 to 1000.

    Raises:
        ConfigError: one is malformed or out of range, a name comes twice, or there are too many.
    """
    weights: dict[str, int] = {}
    for text in texts:
        match = re.fullmatch(r"(\S{1,256})=([0-9]{1,4})", text, re.ASCII)
        if match is None or not 1 <= int(match[2]) <= 1000 or match[1] in weights:
            raise ConfigError(
                f"--tenant-weight must be NAME=W with W from 1 to 1000, each once, got {text!r}"
            )
        weights[match[1]] = int(match[2])
    if len(weights) > MAX_TENANT_WEIGHTS:
        raise ConfigError(f"--tenant-weight may name at most {MAX_TENANT_WEIGHTS} tenants")
    return weights


def check_address(flag: str, address: str) -> None:
    """Refuse anything but ipc://PATH and tcp://HOST:PORT.

    Raises:
        ConfigError: names the flag and the two forms.
    """
    # Abstract names (@) are open to every user of the machine: no directory guards them.
    if not re.fullmatch(r"ipc://[^@].{0,99}|tcp://(\*|\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}", address):
        raise ConfigError(
            f"{flag} must be ipc://PATH (at most 100 characters, the first not @) or tcp://HOST:PORT, "
            f"got {address!r}"
        )


def check_choice(flag: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not among the choices.

    Raises:
        ConfigError: names the flag and the choices.
    """
    if value not in choices:
        raise ConfigError(f"{flag} must be one of {', '.join(choices)}, got {value!r}")


def check_range(flag: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside low..high, NaN included.

    Raises:
        ConfigError: names the flag and the range.
    """
    if not low <= value <= high:
        raise ConfigError(f"{flag} must be from {low} to {high}, got {value}")

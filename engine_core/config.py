"""The configuration of one engine-core: built once, from the command line, and validated before use."""

# No "from __future__ import annotations": --help would compile each declaration from its text, 10 ms in all.
import re
from typing import Annotated

import msgspec

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.addresses import check_keys
from splitserve.engine_core.process.runtime_directory import default_engine_address
from splitserve.engine_core.settings.checks import check_address
from splitserve.engine_core.settings.scheduling import SchedulingSettings
from splitserve.engine_core.settings.setting import Setting, declared
from splitserve.engine_core.settings.shared import (
    MAX_DESCRIPTOR,
    HeartbeatFd,
    InsecureTcp,
    KeysDirectory,
)

EXECUTORS = ("multiproc", "ray", "simulated")


# Steps that compute for less are planned further ahead and answered two at a time.
SHORT_STEP_S = 500e-6


def max_steps_in_flight(num_stages: int) -> int:
    """Return how many steps may be planned and not yet answered: one per stage of the pipeline.

    Without one it is the step that runs and one that is there when it ends; of short steps there may be more,
    see engine_core.scheduler.run_ahead.
    """
    return max(2, num_stages)


# Rows of a step, drafts included, up to which a draft is cheap: weights are read once for all of them. Beyond
# it a step's time grows with its rows, and a draft that does not count costs as much as a token.
MAX_CHEAP_ROWS = 64


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
        num_blocks: KV blocks of the pool; 0 for a model without a KV cache, which computes prompts whole.
        policy: "fcfs", "priority" or "fair".
        enable_prefix_caching: reuse the KV of equal prefixes.
        tenant_weights: shares under the fair policy, 1..1000; tenants not named here have 1.
        max_waiting_tokens: bound of the prompt tokens that wait; beyond it requests are rejected with 429.
        queue_timeout_s: a request that names none waits no longer before it first runs; 0 means for ever.
        target_itl_s: a step's prefill is cut to keep steps with decoding rows this short; 0 means never.
        log_wait_s: a request that has waited so long is logged, once; 0 means never.
        num_host_blocks: blocks of the CPU offload tier that evicted prefixes move to; 0 for no tier, and
            without prefix caching.
        move_block_ns: nanoseconds one block takes between pool and offload tier, as measured; 0 if not known.
        victim: which row behind one in need of a block gives way: "cost" or "last", see scheduler.victims.
        num_adapter_slots: adapters in memory at once; 0 for none.
        adapters: their directories by name, from the start.
        num_stages: of the pipeline; with several, a row waits for its token before it is planned again.
        num_speculative_tokens: most tokens that a worker drafts per row and step; 0 for no speculation.
        drafts_fill_blocks: what drafts has a KV cache of its own, in which a token has the same block; in a
            pipeline it drafts before the step that would bring the blocks.
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
    num_speculative_tokens: int = 0
    drafts_fill_blocks: bool = False
    num_adapter_slots: int = 0
    adapters: dict[str, str] = {}


class EngineConfig(SchedulingSettings, frozen=True, kw_only=True):
    """The settings of an engine-core, which are its flags, too."""

    served_model_names: Annotated[
        list[str],
        Setting(
            "names under which clients may ask for the model; responses show the first",
            "model",
            flag="--served-model-name",
            metavar="NAME",
            default="the model as given",
        ),
    ] = msgspec.field(default_factory=list)
    executor: Annotated[
        str,
        Setting(
            "multiproc runs workers as processes, ray on a cluster; simulated generates fake tokens",
            "model",
            choices=EXECUTORS,
            docs=", see [parallelism](parallelism.md#over-several-machines)",
            llm=True,
        ),
    ] = "multiproc"
    fit: Annotated[
        bool,
        Setting(
            "say what weights, KV cache and activations will take and what fits, then exit",
            "model",
            docs=", see [models](models.md#what-fits-into-memory)",
        ),
    ] = False
    ray_address: Annotated[
        str,
        Setting(
            "Ray cluster to join, HOST:PORT, auto (one that runs here) or local (start one)",
            "model",
            metavar="HOST:PORT",
            default="RAY_ADDRESS, else local",
            docs=", see [parallelism](parallelism.md#over-several-machines)",
        ),
    ] = ""
    # Where machines are added on demand, room takes minutes.
    ray_timeout_s: Annotated[
        float,
        Setting(
            "seconds to wait for the Ray cluster, and for free resources on it", "model", low=1, high=86400
        ),
    ] = 60.0
    # A machine that only computes may hold nothing else.
    tokenizer_check: Annotated[
        bool,
        Setting(
            "refuse a model without tokenizer.json; turn off if every frontend has --assets-dir",
            "model",
            negatable=True,
            docs=", as `serve --assets-dir` does",
        ),
    ] = True
    # The longest silence of a start that gets on is an import from a slow disk, or the recording of graphs.
    load_timeout_s: Annotated[
        float,
        Setting(
            "seconds without progress after which workers that are starting count as lost",
            "model",
            low=1,
            high=86400,
        ),
    ] = 600.0
    step_timeout_s: Annotated[
        float,
        Setting(
            "seconds after which a step without an answer always means that the worker is lost",
            "model",
            low=1,
            high=3600,
            docs="; usually that is known [earlier](processes.md#when-a-worker-is-lost)",
        ),
    ] = 60.0
    worker_wait_s: Annotated[
        float,
        Setting(
            "seconds that workers wait for a successor of an engine that died; 0 = they end with it",
            "model",
            low=0,
            high=86400,
            docs=", see [processes](processes.md#workers-without-an-engine)",
        ),
    ] = 30.0
    simulated_step_ms: Annotated[
        float,
        Setting("duration of a step of the simulated executor", "model", metavar="MS", low=0, high=60000),
    ] = 0.0
    kv_events_address: Annotated[
        str,
        Setting(
            "publish which prefixes are cached, for external routers; ipc://PATH or tcp://HOST:PORT",
            "KV events",
            metavar="ADDR",
            default="not published",
        ),
    ] = ""
    kv_events_replay_address: Annotated[
        str,
        Setting("where subscribers request events they missed", "KV events", metavar="ADDR", default="none"),
    ] = ""
    kv_events_topic: Annotated[
        str,
        Setting(
            "topic that subscribers filter by",
            "KV events",
            metavar="TOPIC",
            default="empty",
            docs="; at most 256 visible ASCII characters",
        ),
    ] = ""
    kv_events_buffer_steps: Annotated[
        int,
        Setting(
            "batches of events kept for subscribers that missed some",
            "KV events",
            low=1,
            high=10**6,
            docs="; at most 64 MiB of them",
        ),
    ] = 10_000
    listen: Annotated[
        str,
        Setting(
            "address for api-frontends, ipc://PATH or tcp://HOST:PORT",
            "connections",
            metavar="ADDR",
            default="a private Unix socket",
            docs=", see [processes](processes.md)",
            serve=False,
        ),
    ] = msgspec.field(default_factory=default_engine_address)
    engine_id: Annotated[str, Setting("name in logs, metrics and errors", "connections", metavar="NAME")] = (
        "engine-0"
    )
    lease_s: Annotated[
        float,
        Setting(
            "seconds of silence after which a connected frontend counts as hung and loses its requests",
            "connections",
            low=1,
            high=3600,
            docs=", see [processes](processes.md#when-a-frontend-is-gone)",
        ),
    ] = 30.0
    drain_timeout_s: Annotated[
        float,
        Setting(
            "seconds that running requests get to finish after SIGTERM", "connections", low=0, high=86400
        ),
    ] = 30.0
    curve_dir: KeysDirectory = ""
    allow_insecure_tcp: InsecureTcp = False
    heartbeat_fd: HeartbeatFd = None
    standby_fd: Annotated[
        int | None,
        Setting(
            "inherited socket on which it waits, prepared, until it is needed",
            "launch",
            low=0,
            high=MAX_DESCRIPTOR,
            default="none",
            serve=False,
        ),
    ] = None

    def validate(self) -> None:
        """Check every value against its declaration, and those that concern each other.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        check_address("--listen", self.listen)
        check_keys(self.listen, bool(self.curve_dir), self.allow_insecure_tcp)
        self._check_executor()
        self._check_kv_events()

    def _check_executor(self) -> None:
        if self.num_ranks > 1 and self.executor == "simulated":
            sizes = "--tensor-parallel-size times --pipeline-parallel-size"
            raise ConfigError(f"{sizes} must be 1 with --executor simulated")
        if self.fit and self.executor == "simulated":
            raise ConfigError("--fit must be left out with --executor simulated")
        if self.executor == "simulated" and self.speculation is not None:
            flags = "--speculate, --speculative-config and --speculative-model"
            raise ConfigError(f"{flags} must be left out with --executor simulated")
        if not re.fullmatch(r"|auto|local|[^/\s]{1,250}:\d{1,5}", self.ray_address):
            raise ConfigError(f"--ray-address must be HOST:PORT, auto or local, got {self.ray_address!r}")
        if self.executor != "ray":
            self._check_not_given("--executor ray", "ray_address", "ray_timeout_s")

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
        if not re.fullmatch(r"[!-~]{0,256}", self.kv_events_topic):
            raise ConfigError("--kv-events-topic must be at most 256 visible ASCII characters without spaces")
        if not self.kv_events_address:
            others = ("kv_events_replay_address", "kv_events_topic", "kv_events_buffer_steps")
            self._check_not_given("--kv-events-address", *others)

    def _check_not_given(self, needed: str, *fields: str) -> None:
        """Refuse what would be ignored without another flag."""
        for each in declared(EngineConfig):
            if each.field in fields and getattr(self, each.field) != each.default:
                raise ConfigError(f"{each.flag} must be given together with {needed}")

"""Which settings of an engine decide what runs next and what the KV cache keeps."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration, 10 ms in all.
import re
from typing import Annotated

import msgspec

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Setting
from splitserve.engine_core.settings.worker_settings import MAX_STEP_TOKENS, WorkerSettings

POLICIES = ("fcfs", "priority", "fair")
MAX_TENANT_WEIGHTS = 1000


class SchedulingSettings(WorkerSettings, frozen=True, kw_only=True):
    """Settings of the scheduler, in addition to those that the workers share with it."""

    num_blocks: Annotated[
        int,
        Setting(
            "number of KV blocks, regardless of memory; 0 = derived from memory",
            "KV cache",
            low=0,
            high=2**30,
            docs="; at most 2^31 - 1 tokens in all",
            llm=True,
        ),
    ] = 0
    kv_offload_gb: Annotated[
        float,
        Setting(
            "GiB of host memory for KV blocks evicted from the cache (CPU offload); 0 = none",
            "KV cache",
            metavar="GIB",
            low=0,
            high=2**20,
            docs="; needs prefix caching",
            llm=True,
        ),
    ] = 0.0
    enable_prefix_caching: Annotated[
        bool, Setting("reuse the KV cache of shared prompt prefixes", "KV cache", negatable=True, llm=True)
    ] = True
    max_prefill_tokens: Annotated[
        int,
        Setting(
            "maximum number of prompt tokens of one request computed in one step; 0 = no separate limit",
            "scheduling",
            metavar="TOKENS",
            low=0,
            high=MAX_STEP_TOKENS,
            llm=True,
        ),
    ] = 0
    watermark_percent: Annotated[
        int,
        Setting(
            "share of the KV cache kept free for running requests to grow into",
            "scheduling",
            metavar="PERCENT",
            low=0,
            high=90,
        ),
    ] = 5
    max_num_waiting: Annotated[
        int,
        Setting(
            "maximum number of waiting requests; beyond it, requests are refused with 429",
            "scheduling",
            low=1,
            high=10**6,
            docs="; those that free rows will take next do not count",
        ),
    ] = 4096
    max_waiting_tokens: Annotated[
        int,
        Setting(
            "maximum number of waiting prompt tokens; beyond it, requests are refused with 429",
            "scheduling",
            metavar="TOKENS",
            low=1,
            high=2**40,
        ),
    ] = 2**22
    policy: Annotated[
        str,
        Setting(
            "order of admission: fcfs by arrival, priority by the request's priority, fair by tenant weights",
            "scheduling",
            flag="--scheduling-policy",
            choices=POLICIES,
            llm=True,
        ),
    ] = "fcfs"
    tenant_weights: Annotated[
        list[str],
        Setting(
            "weight of a tenant with --scheduling-policy fair, 1 to 1000",
            "scheduling",
            flag="--tenant-weight",
            metavar="NAME=W",
            default="1 each",
            docs="; at most 1000 tenants",
        ),
    ] = msgspec.field(default_factory=list)
    queue_timeout_s: Annotated[
        float,
        Setting(
            "seconds a request may wait before it first runs, unless it sets its own limit; 0 = no limit",
            "scheduling",
            low=0,
            high=7 * 86400,
        ),
    ] = 0.0
    target_itl_ms: Annotated[
        float,
        Setting(
            "limit prefill so that steps with decoding requests stay this short; 0 = no limit",
            "scheduling",
            metavar="MS",
            low=0,
            high=60000,
        ),
    ] = 200.0
    log_wait_s: Annotated[
        float,
        Setting(
            "seconds in the queue after which a request is logged with what it waits for; 0 = never",
            "scheduling",
            low=0,
            high=86400,
        ),
    ] = 10.0

    def validate(self) -> None:
        """Check every value against its declaration, and the constraints between settings.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        if parse_weights(self.tenant_weights) and self.policy != "fair":
            raise ConfigError("--tenant-weight must be given together with --scheduling-policy fair")
        if self.kv_offload_gb and not self.enable_prefix_caching:
            raise ConfigError("--kv-offload-gb requires prefix caching")


def parse_weights(texts: list[str]) -> dict[str, int]:
    """Parse NAME=W of --tenant-weight; W is a whole number from 1 to 1000.

    Raises:
        ConfigError: one is malformed or out of range, a name occurs twice, or there are too many.
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

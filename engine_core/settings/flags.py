"""Flags as tables: those of engine-core, and how a table becomes a parser, a configuration or words."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from splitserve.engine_core.config import (
    ATTENTION_BACKENDS,
    DEVICES,
    DTYPES,
    EXECUTORS,
    LOG_LEVELS,
    POLICIES,
    QUANTIZATIONS,
    EngineConfig,
)
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.flag_values import parse_bytes, parse_count, parse_dtype, parse_name


class Flag(NamedTuple):
    """One flag.

    Attributes:
        name: as typed, with its dashes.
        field: attribute of the parsed arguments; for an engine-core, of EngineConfig.
        help: without the default, which is appended.
        type: converts the text; None for a switch.
        choices: allowed values, shown in the help.
        metavar: placeholder of the value in the help.
        many: takes several values.
        negatable: a switch with a --no- form.
        alias: a short name.
    """

    name: str
    field: str
    help: str
    type: Callable[[str], str | int | float] | None = str
    choices: tuple[str, ...] = ()
    metavar: str = ""
    many: bool = False
    negatable: bool = False
    alias: str = ""


FlagTable = Mapping[str, Sequence[Flag]]
"""Flags by the title of their group in the help."""

ENGINE_FLAGS: FlagTable = {
    "model": (
        Flag(
            "--served-model-name",
            "served_model_names",
            "names clients may use, the first is the main one; default: what --model says",
            metavar="NAME",
            many=True,
        ),
        Flag(
            "--dtype",
            "dtype",
            "of weights and KV cache; auto takes the checkpoint's; half, bf16 and the like are known too",
            parse_dtype,
            choices=DTYPES,
        ),
        Flag(
            "--quantization",
            "quantization",
            "round the weights to integers while they are loaded; needs bfloat16",
            parse_name,
            choices=QUANTIZATIONS,
        ),
        Flag(
            "--max-model-len",
            "max_model_len",
            "longest sequence, prompt and output; 0 takes the model's limit",
            parse_count,
            metavar="TOKENS",
        ),
        Flag(
            "--executor",
            "executor",
            "multiproc runs the model in worker processes, ray on a cluster, simulated makes tokens up",
            parse_name,
            choices=EXECUTORS,
        ),
        Flag(
            "--ray-address",
            "ray_address",
            "the Ray cluster; without it that of RAY_ADDRESS, or one of its own on this machine",
            metavar="HOST:PORT",
        ),
        # Where machines are added on demand, room takes minutes.
        Flag(
            "--ray-timeout",
            "ray_timeout_s",
            "seconds to wait for the Ray cluster, and for room on it",
            float,
            metavar="SECONDS",
        ),
        Flag(
            "--device",
            "device",
            "where to compute; auto takes a GPU if one can be used",
            parse_name,
            choices=DEVICES,
        ),
        Flag(
            "--attention-backend",
            "attention_backend",
            "what computes attention; auto picks by device and says why in the log",
            parse_name,
            choices=ATTENTION_BACKENDS,
        ),
        Flag(
            "--num-threads",
            "num_threads",
            "compute threads of each worker; 0 shares every core among them",
            parse_count,
            metavar="N",
        ),
        Flag(
            "--tensor-parallel-size",
            "tensor_parallel_size",
            "workers that part each layer among them",
            parse_count,
            metavar="N",
            alias="-tp",
        ),
        Flag(
            "--pipeline-parallel-size",
            "pipeline_parallel_size",
            "stages of workers that each hold some of the layers",
            parse_count,
            metavar="N",
            alias="-pp",
        ),
        Flag(
            "--batch-invariant",
            "batch_invariant",
            "same tokens in any batch on a GPU too, at some cost; on a CPU it is always so",
            None,
            negatable=True,
        ),
        Flag(
            "--enforce-eager",
            "enforce_eager",
            "run every kernel of a step by itself, and record no decode steps",
            None,
            negatable=True,
        ),
        # A machine that only computes may hold nothing else.
        Flag(
            "--tokenizer-check",
            "tokenizer_check",
            "refuse a model without tokenizer.json; off where every frontend has --assets-dir",
            None,
            negatable=True,
        ),
        Flag(
            "--step-timeout",
            "step_timeout_s",
            "seconds of one step after which the worker counts as lost",
            float,
            metavar="S",
        ),
        Flag(
            "--simulated-step-ms",
            "simulated_step_ms",
            "duration of a step of the simulated executor",
            float,
            metavar="MS",
        ),
    ),
    "KV cache": (
        Flag("--block-size", "block_size", "tokens per block", parse_count, metavar="TOKENS"),
        Flag(
            "--kv-cache-memory-bytes",
            "kv_cache_memory_bytes",
            "memory of the KV cache, e.g. 4G; 0 takes what the worker can spare",
            parse_bytes,
            metavar="BYTES",
        ),
        Flag(
            "--gpu-memory-utilization",
            "gpu_memory_utilization",
            "share of a GPU's memory that a worker may take, weights included",
            float,
            metavar="SHARE",
        ),
        Flag(
            "--num-blocks",
            "num_blocks",
            "number of blocks, whatever memory they take; 0 derives it",
            parse_count,
            metavar="N",
        ),
        Flag(
            "--kv-offload-gb",
            "kv_offload_gb",
            "GiB of host memory that blocks evicted from the KV cache move to; 0 drops them",
            float,
            metavar="GIB",
        ),
        Flag(
            "--enable-prefix-caching",
            "enable_prefix_caching",
            "reuse the KV of equal prompt beginnings",
            None,
            negatable=True,
        ),
    ),
    "scheduling": (
        Flag("--max-num-seqs", "max_num_seqs", "sequences that run at once", parse_count, metavar="N"),
        Flag(
            "--max-num-batched-tokens",
            "max_num_batched_tokens",
            "tokens computed in one step",
            parse_count,
            metavar="TOKENS",
        ),
        Flag(
            "--max-prefill-tokens",
            "max_prefill_tokens",
            "prompt tokens of one request computed in one step; 0 sets no limit of its own",
            parse_count,
            metavar="TOKENS",
        ),
        Flag(
            "--watermark-percent",
            "watermark_percent",
            "share of the KV pool that stays free for running requests to grow into",
            parse_count,
            metavar="PERCENT",
        ),
        Flag(
            "--max-num-waiting",
            "max_num_waiting",
            "requests that may wait; beyond it who holds most, or a newcomer, is refused with 429",
            parse_count,
            metavar="N",
        ),
        Flag(
            "--scheduling-policy",
            "policy",
            "fcfs admits in order of arrival, priority by the request's priority, fair by tenants' shares",
            parse_name,
            choices=POLICIES,
        ),
        Flag(
            "--tenant-weight",
            "tenant_weights",
            "share of a tenant under --scheduling-policy fair, 1 to 1000; others have 1",
            metavar="NAME=W",
            many=True,
        ),
        Flag(
            "--max-waiting-tokens",
            "max_waiting_tokens",
            "prompt tokens that may wait; beyond it who holds most, or a newcomer, is refused with 429",
            parse_count,
            metavar="TOKENS",
        ),
        Flag(
            "--queue-timeout",
            "queue_timeout_s",
            "seconds a request may wait before it first runs, unless it says so itself; 0 for ever",
            float,
            metavar="S",
        ),
        Flag(
            "--target-itl-ms",
            "target_itl_ms",
            "cut prefill so that steps of decoding requests stay this short; 0 does not cut",
            float,
            metavar="MS",
        ),
        Flag(
            "--log-wait",
            "log_wait_s",
            "seconds in the queue after which a request is logged with what it waits for; 0 never",
            float,
            metavar="S",
        ),
    ),
    "KV events": (
        Flag(
            "--kv-events-address",
            "kv_events_address",
            "publish which prefixes are cached, for outside routers; default: not at all",
            metavar="ADDR",
        ),
        Flag(
            "--kv-events-replay-address",
            "kv_events_replay_address",
            "where subscribers ask for events they missed; default: nowhere",
            metavar="ADDR",
        ),
        Flag("--kv-events-topic", "kv_events_topic", "topic subscribers filter by", metavar="TOPIC"),
        Flag(
            "--kv-events-buffer-steps",
            "kv_events_buffer_steps",
            "batches of events kept for those who missed some",
            parse_count,
            metavar="N",
        ),
    ),
    "connections": (
        Flag("--engine-id", "engine_id", "name in logs, metrics and errors", metavar="NAME"),
        Flag(
            "--lease",
            "lease_s",
            "seconds of silence after which a frontend that is still connected counts as hung",
            float,
            metavar="S",
        ),
        Flag(
            "--drain-timeout",
            "drain_timeout_s",
            "seconds running requests may go on after SIGTERM",
            float,
            metavar="S",
        ),
        Flag("--keys", "curve_dir", "directory made by `splitserve keys`, for TCP", metavar="DIR"),
        Flag(
            "--insecure",
            "allow_insecure_tcp",
            "permit TCP beyond this machine without keys: anyone who reaches the port controls the engine",
            None,
        ),
        Flag("--log-level", "log_level", "least severe message to log", parse_name, choices=LOG_LEVELS),
    ),
}


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of an engine-core with their defaults."""
    defaults = EngineConfig(model="")
    for title, flags in ENGINE_FLAGS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            add_flag(group, flag, getattr(defaults, flag.field))


def add_flag(group: argparse._ArgumentGroup, flag: Flag, default: object = "") -> None:
    """Add one flag; when it is not given it leaves no trace in the parsed arguments.

    Args:
        group: of the parser.
        flag: to add.
        default: shown in the help unless it is empty.
    """
    text = flag.help
    if flag.type is None:
        shown = f"{text} (default: {'on' if default else 'off'})"
        action = argparse.BooleanOptionalAction if flag.negatable else "store_true"
        group.add_argument(flag.name, dest=flag.field, action=action, default=argparse.SUPPRESS, help=shown)
        return
    if not flag.many and default != "":
        text += f" (default: {f'{default:g}' if isinstance(default, float) else default})"
    group.add_argument(
        *([flag.alias] if flag.alias else []),
        flag.name,
        dest=flag.field,
        action="extend" if flag.many else "store",
        type=flag.type,
        choices=flag.choices or None,
        metavar=flag.metavar or None,
        nargs="+" if flag.many else None,
        default=argparse.SUPPRESS,
        help=text.replace("%", "%%"),
    )


def engine_config(args: argparse.Namespace, *, model: str, listen: str) -> EngineConfig:
    """Build the configuration from parsed flags.

    Raises:
        ConfigError: a value is out of range; names its flag and the range.
    """
    fields = [flag.field for flags in ENGINE_FLAGS.values() for flag in flags]
    given = {field: getattr(args, field) for field in fields if hasattr(args, field)}
    try:
        config = msgspec.convert({**given, "model": model, "listen": listen}, EngineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None
    config.validate()
    return config


def given_words(args: argparse.Namespace, table: FlagTable) -> list[str]:
    """Return those flags of a table that were given, as words of a command line."""
    given = [flag for flags in table.values() for flag in flags if hasattr(args, flag.field)]
    return [word for flag in given for word in _words(flag, getattr(args, flag.field))]


def _words(flag: Flag, value: object) -> list[str]:
    if isinstance(value, bool):
        return [flag.name if value else flag.name.replace("--", "--no-", 1)]
    values = value if isinstance(value, list) else [value]
    return [f"{flag.name}={item}" for item in values]

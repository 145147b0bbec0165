"""Which flags `splitserve serve` takes: its own, those of the engine, and those passed on to every frontend.

From the frontend's package it imports only the declarations, no serving code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.settings.setting import Setting, Settings, declared
from splitserve.frontend.config import FRONTEND_SETTINGS, FrontendConfig, Host, Port, UnixSocket

MAX_FRONTENDS = 64


class ServeSettings(Settings, frozen=True, kw_only=True):
    """Settings of the launcher itself."""

    host: Host = "127.0.0.1"
    port: Port = 8000
    uds: UnixSocket = ""
    api_server_count: Annotated[
        int,
        Setting(
            "number of api-frontend processes that share the address", "address", low=1, high=MAX_FRONTENDS
        ),
    ] = 1


SERVE = declared(ServeSettings)
# An argument of the command, not a flag; a file or the environment may name it, too.
MODEL = next(each for each in declared(EngineConfig) if each.field == "model")
ENGINE = tuple(each for each in declared(EngineConfig) if each.setting.serve)
_TAKEN = {each.flag for each in (*SERVE, *ENGINE)}
# --keys, --insecure, --log-level and --log-format are flags of the engine: frontends reach it over a private
# Unix socket, and get the same log settings.
FRONTEND = tuple(each for each in FRONTEND_SETTINGS if each.setting.serve and each.flag not in _TAKEN)

_FIRST_WORD = "the model is the first word: splitserve serve MODEL"
_SPECULATIVE = "it is part of --speculative-config"
_DRAFT_MODEL = "it is --speculative-model here"
_LAYERS = "a GPU holds all layers, see --device"
# What other servers call them, or have flags for that are not needed here.
HINTS = {
    "--model": _FIRST_WORD,
    "--model-path": _FIRST_WORD,
    "-m": _FIRST_WORD,
    "-hf": _FIRST_WORD,
    "--hf-repo": _FIRST_WORD,
    "--enable-auto-tool-choice": "tool calls need none; --tool-call-parser none refuses tools",
    "--jinja": "chats always have their template, see --chat-template",
    "--trust-remote-code": "code that comes with a model is never run",
    "--enable-lora": "adapters are named by --lora NAME=DIR",
    "--enable-chunked-prefill": "prompts are always computed in chunks, see --max-prefill-tokens",
    "--guided-decoding-backend": "grammars need none",
    "--disable-log-requests": "requests are logged only with --log-requests",
    "--swap-space": "it is --kv-offload-gb here",
    "--embedding": "it is --task embed here",
    "--embeddings": "it is --task embed here",
    "--reranking": "it is --task score here",
    "--num-speculative-tokens": _SPECULATIVE,
    "--draft-max": _SPECULATIVE,
    "--model-draft": _DRAFT_MODEL,
    "--draft-model": _DRAFT_MODEL,
    "-md": _DRAFT_MODEL,
    "--gpu-layers": _LAYERS,
    "--n-gpu-layers": _LAYERS,
    "-ngl": _LAYERS,
} | {
    theirs: f"it is {ours} here"
    for ours, names in {
        "--port": "-p",
        "--max-model-len": "--ctx-size -c --context-length",
        "--num-threads": "--threads -t",
        "--max-num-seqs": "--parallel -np --max-running-requests",
        "--max-num-batched-tokens": "--batch-size -b",
        "--kv-cache-dtype": "--cache-type-k -ctk --cache-type-v -ctv",
        "--served-model-name": "--alias -a",
        "--attention-backend": "--flash-attn -fa",
        "--tensor-parallel-size": "--tp --tp-size",
        "--gpu-memory-utilization": "--mem-fraction-static",
    }.items()
    for theirs in names.split()
}


def frontend_config(given: Mapping[str, object]) -> FrontendConfig:
    """Return the given settings of the frontends, unchecked: api-frontend checks them."""
    return msgspec.convert(given, FrontendConfig)

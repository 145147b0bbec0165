"""Which adapters (LoRA) are served beside the model, and how much memory they may take."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration, 10 ms in all.
import re
from typing import Annotated

import msgspec

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Setting, Settings

# What the kernels take.
MAX_LORAS = 256
MAX_LORA_RANK = 256
# Adapters that one engine knows by name, in memory or not.
MAX_NAMES = 1000
MAX_NAME_CHARS = 200

_NAME = re.compile(rf"[^\s=/\x00-\x1f][^\s=\x00-\x1f]{{0,{MAX_NAME_CHARS - 1}}}")


class AdapterSettings(Settings, frozen=True, kw_only=True):
    """Settings of an engine and its workers that concern adapters."""

    lora: Annotated[
        list[str],
        Setting(
            "adapters to serve beside the model, each under a name of its own; folders as PEFT writes them",
            "adapters",
            alias="--lora-modules",
            metavar="NAME=DIR",
            default="none",
            docs=", see [adapters](lora.md)",
            llm=True,
        ),
    ] = msgspec.field(default_factory=list)
    lora_dir: Annotated[
        str,
        Setting(
            "folder below which adapters may be loaded over HTTP while the server runs",
            "adapters",
            metavar="DIR",
            default="none may",
            docs=", see [adapters](lora.md#loading-while-the-server-runs)",
        ),
    ] = ""
    max_loras: Annotated[
        int,
        Setting(
            "adapters in memory at once; others are loaded when a request asks for them",
            "adapters",
            low=1,
            high=MAX_LORAS,
            docs=", and the one used longest ago gives way",
            llm=True,
        ),
    ] = 8
    max_lora_rank: Annotated[
        int,
        Setting("largest rank of an adapter", "adapters", low=1, high=MAX_LORA_RANK, llm=True),
    ] = 16

    @property
    def num_adapter_slots(self) -> int:
        """Adapters that there is room for; 0 if there can be none."""
        return self.max_loras if self.lora or self.lora_dir else 0

    def validate(self) -> None:
        """Check every value against its declaration.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        named_adapters(self.lora)


def named_adapters(texts: list[str]) -> dict[str, str]:
    """Parse NAME=DIR of --lora into directories by name.

    Raises:
        ConfigError: one is malformed, a name occurs twice, or there are too many.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not path or not is_adapter_name(name):
            raise ConfigError(f"--lora must be NAME=DIR, got {text[:300]!r}")
        if name in found:
            raise ConfigError(f"--lora names {name!r} twice")
        found[name] = path
    if len(found) > MAX_NAMES:
        raise ConfigError(f"--lora may name at most {MAX_NAMES} adapters")
    return found


def is_adapter_name(name: str) -> bool:
    """Whether an adapter may have a name: up to 200 characters without spaces and "=", no "/" first."""
    return _NAME.fullmatch(name) is not None

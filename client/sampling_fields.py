"""How answers are sampled: fields of every request, sent only if they are given."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
import json
from typing import Annotated

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Setting, Settings

NAMES = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)


def _number(help_text: str, low: float, high: float) -> Setting:
    return Setting(help_text, "sampling", low=low, high=high, default="the server's")


class SamplingSettings(Settings, frozen=True, kw_only=True):
    """Settings of the requests beside prompt and length."""

    ignore_eos: Annotated[
        bool, Setting("generate all tokens asked for; always so with random texts", "sampling")
    ] = False
    temperature: Annotated[float | None, _number("0 is greedy", 0, 100)] = None
    top_p: Annotated[float | None, _number("mass of the most probable tokens to sample from", 0, 1)] = None
    top_k: Annotated[int | None, _number("number of the most probable tokens to sample from", -1, 2**31)] = (
        None
    )
    min_p: Annotated[float | None, _number("least probability, as a share of the largest", 0, 1)] = None
    frequency_penalty: Annotated[float | None, _number("per occurrence of a token", -2, 2)] = None
    presence_penalty: Annotated[float | None, _number("of tokens that have occurred", -2, 2)] = None
    repetition_penalty: Annotated[
        float | None, _number("factor for tokens that have occurred", 0.01, 100)
    ] = None
    extra_body: Annotated[
        str,
        Setting("JSON object of further fields of each request", "sampling", metavar="JSON", default="none"),
    ] = ""

    def validate(self) -> None:
        """Check every value against its declaration, and --extra-body.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        self.fields()

    def fields(self) -> dict[str, object]:
        """Return the fields of every request that are given.

        Raises:
            ConfigError: --extra-body is no JSON object.
        """
        given = {name: value for name in NAMES if (value := getattr(self, name)) is not None}
        try:
            extra = json.loads(self.extra_body or "{}")
        except ValueError:
            extra = None
        if not isinstance(extra, dict):
            raise ConfigError(f"--extra-body takes a JSON object, got {self.extra_body!r}")
        return {**given, **({"ignore_eos": True} if self.ignore_eos else {}), **extra}

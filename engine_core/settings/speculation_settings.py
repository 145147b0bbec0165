"""Which settings say how tokens are drafted ahead? What they mean: engine_core.settings.speculation."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration, 10 ms in all.
from typing import Annotated

from splitserve.engine_core.settings.parallel_settings import ParallelSettings
from splitserve.engine_core.settings.setting import Setting
from splitserve.engine_core.settings.speculation import AUTO, CHOICES, Speculation, parse_speculation


class SpeculationSettings(ParallelSettings, frozen=True, kw_only=True):
    """Settings of an engine and its workers that concern drafts."""

    speculate: Annotated[
        str,
        Setting(
            "draft tokens ahead: what followed the last ones before in the text (ngram), or in recent "
            "answers too (suffix), a grammar forces (grammar), a smaller model says (draft), or a layer that "
            "reads the model's hidden states (eagle, mtp); auto does what the other flags say, none takes "
            "that back",
            "speculation",
            choices=CHOICES,
            docs="; no token changes, see [speculation](speculation.md)",
            llm=True,
        ),
    ] = AUTO
    speculative_config: Annotated[
        str,
        Setting(
            "the same with details, as a JSON object",
            "speculation",
            metavar="JSON",
            default="none",
            docs=", see [speculation](speculation.md#settings)",
            llm=True,
        ),
    ] = ""
    speculative_model: Annotated[
        str,
        Setting(
            "the smaller model or EAGLE-3 head that drafts, with the same vocabulary",
            "speculation",
            metavar="DIR|ID",
            default="none",
            docs=", see [speculation](speculation.md#a-draft-model-draft)",
            llm=True,
        ),
    ] = ""

    @property
    def speculation(self) -> Speculation | None:
        """How tokens are drafted; None if they are not.

        Raises:
            ConfigError: it is not said clearly.
        """
        return parse_speculation(self.speculate, self.speculative_config, self.speculative_model)

    def validate(self) -> None:
        """Check every value against its declaration, and how tokens are drafted.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        parse_speculation(self.speculate, self.speculative_config, self.speculative_model)

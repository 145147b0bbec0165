"""The flags of a model that runs in a script: those of the engine that the LLM class takes as keywords."""

from __future__ import annotations

import argparse
from typing import cast

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.settings.arguments import given_values
from splitserve.engine_core.settings.setting import Value, declared

ENGINE = tuple(each for each in declared(EngineConfig) if each.setting.llm)
MODEL_AND_ENGINE = tuple(each for each in declared(EngineConfig) if each.setting.llm or each.field == "model")


def model_name(args: argparse.Namespace) -> str:
    """Return the model that was named, "" for the demo model."""
    return getattr(args, "model", "")


def engine_keywords(args: argparse.Namespace) -> dict[str, Value]:
    """Return the flags that were given as keywords of LLM."""
    given = given_values(args, ENGINE)
    return {each.keyword: cast(Value, given[each.field]) for each in ENGINE if each.field in given}

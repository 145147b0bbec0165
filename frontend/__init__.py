"""api-frontend: stateless OpenAI-compatible HTTP servers and the offline LLM class; imports no torch.

`from frontend import LLM, SamplingParams` is what a script needs; all are imported when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_core.sampling_params import RepetitionDetection, SamplingParams
    from frontend.llm import LLM

__all__ = ["LLM", "RepetitionDetection", "SamplingParams"]

_HOMES = {
    "LLM": "frontend.llm",
    "RepetitionDetection": "engine_core.sampling_params",
    "SamplingParams": "engine_core.sampling_params",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

"""A multi-process LLM serving engine; each process is a package of its own, see docs/architecture.md.

`from splitserve import LLM, SamplingParams` is what a script needs; each is imported when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splitserve.engine_core.sampling_params import SamplingParams
    from splitserve.engine_core.sequence_sampling import RepetitionDetection
    from splitserve.engine_core.structured_outputs import StructuredOutputs, StructuredOutputsParams
    from splitserve.frontend.offline.async_llm import AsyncLLM
    from splitserve.frontend.offline.control.beam_search import BeamSearchParams
    from splitserve.frontend.offline.llm import LLM

__all__ = [
    "AsyncLLM",
    "BeamSearchParams",
    "LLM",
    "RepetitionDetection",
    "SamplingParams",
    "StructuredOutputs",
    "StructuredOutputsParams",
]

_HOMES = {
    "AsyncLLM": "splitserve.frontend.offline.async_llm",
    "BeamSearchParams": "splitserve.frontend.offline.control.beam_search",
    "LLM": "splitserve.frontend.offline.llm",
    "RepetitionDetection": "splitserve.engine_core.sequence_sampling",
    "SamplingParams": "splitserve.engine_core.sampling_params",
    "StructuredOutputs": "splitserve.engine_core.structured_outputs",
    "StructuredOutputsParams": "splitserve.engine_core.structured_outputs",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

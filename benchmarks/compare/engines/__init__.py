"""The engines that can be compared, ours first."""

from __future__ import annotations

from benchmarks.adapters import AdapterSpec
from benchmarks.compare.engines.base import Engine
from benchmarks.compare.engines.hf_transformers import Transformers
from benchmarks.compare.engines.llama_cpp import LlamaCpp
from benchmarks.compare.engines.openvino_genai import OpenVinoGenAi
from benchmarks.compare.engines.split_serve import SplitServe, SplitServeGguf, SplitServeLora
from benchmarks.compare.engines.vllm_cpu import VllmCpu, VllmCpuLora

# What PEFT changes of a Llama unless it is told otherwise, and all linear layers.
ADAPTERS = [AdapterSpec(16, 16, "q_proj,v_proj"), AdapterSpec(16, 16)]

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        SplitServe(""),
        SplitServe("int8"),
        SplitServe("int4"),
        SplitServeGguf("q8_0"),
        SplitServeGguf("q6_k"),
        SplitServeGguf("q4_k_m"),
        *(SplitServeLora(spec) for spec in ADAPTERS),
        VllmCpu(),
        *(VllmCpuLora(spec) for spec in ADAPTERS),
        LlamaCpp("bf16"),
        LlamaCpp("q8_0"),
        LlamaCpp("q4_0"),
        LlamaCpp("q6_k"),
        LlamaCpp("q4_k_m"),
        Transformers(),
        OpenVinoGenAi(),
    )
}

"""The engines that can be compared, ours first."""

from __future__ import annotations

from functools import partial

from benchmarks.adapters import AdapterSpec
from benchmarks.compare.engines.base import Engine
from benchmarks.compare.engines.hf_transformers import Transformers
from benchmarks.compare.engines.llama_cpp import PRECISIONS, LlamaCpp
from benchmarks.compare.engines.openvino_genai import OpenVinoGenAi
from benchmarks.compare.engines.split_serve import SplitServe, SplitServeFile, SplitServeLora
from benchmarks.compare.engines.vllm_cpu import VllmCpu, VllmCpuLora, VllmCpuW8A8
from benchmarks.compare.gguf_export import gguf_path
from benchmarks.compare.w8a8_export import w8a8_path

# What PEFT changes of a Llama unless it is told otherwise, and all linear layers.
ADAPTERS = [AdapterSpec(16, 16, "q_proj,v_proj"), AdapterSpec(16, 16)]

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        SplitServe(""),
        SplitServe("int8"),
        SplitServe("int4"),
        *(
            SplitServeFile(f"gguf-{kind}", PRECISIONS[kind], partial(gguf_path, kind=kind), "llamacpp")
            for kind in ("q8_0", "q6_k", "q4_k_m")
        ),
        *(
            SplitServeFile(
                f"gguf-{kind}-w8a8", PRECISIONS[kind], partial(gguf_path, kind=kind), "llamacpp", "w8a8"
            )
            for kind in ("q8_0", "q6_k", "q4_k_m")
        ),
        SplitServeFile("w8a8", 8, w8a8_path, "vllm"),
        *(SplitServeLora(spec) for spec in ADAPTERS),
        VllmCpu(),
        VllmCpuW8A8(),
        *(VllmCpuLora(spec) for spec in ADAPTERS),
        LlamaCpp("bf16"),
        LlamaCpp("f16"),
        LlamaCpp("q8_0"),
        LlamaCpp("q4_0"),
        LlamaCpp("q6_k"),
        LlamaCpp("q4_k_m"),
        Transformers("bfloat16"),
        Transformers("float32"),
        OpenVinoGenAi(),
    )
}

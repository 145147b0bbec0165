"""How does a model become a GGUF file for llama.cpp? Runs with the Python that has the gguf package.

    python -m benchmarks.compare.gguf_export MODEL_DIR bf16|f16|q8_0|q4_0|q4_k_m|q6_k

Matrices take the type asked for, or bf16 where their rows are no multiple of its block; norms stay float32.
q4_k_m and q6_k are made by llama.cpp itself of the bf16 file, with the types that it gives each matrix.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.compare.shapes import Shape, shape_of
from benchmarks.compare.tensors import read_bf16

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
ARCHITECTURES = {"llama": "llama", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}
MODEL_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


class Kind(NamedTuple):
    """A GGUF quantisation by its names in the gguf package; "" for a mixture of types."""

    file_type: str
    tensor_type: str = ""


KINDS = {
    "bf16": Kind("MOSTLY_BF16", "BF16"),
    "f16": Kind("MOSTLY_F16", "F16"),
    "q8_0": Kind("MOSTLY_Q8_0", "Q8_0"),
    "q4_0": Kind("MOSTLY_Q4_0", "Q4_0"),
    "q4_k_m": Kind("MOSTLY_Q4_K_M"),
    "q6_k": Kind("MOSTLY_Q6_K"),
}


def gguf_path(model: Path, kind: str) -> Path:
    """Return where the file of a model lies."""
    return model / f"{model.name}-{kind}.gguf"


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a Hugging Face weight."""
    stem = name.removesuffix(".weight")
    if stem in MODEL_NAMES:
        return f"{MODEL_NAMES[stem]}.weight"
    layer, rest = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{LAYER_NAMES[rest]}.weight"


def interleave_heads(matrix: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Reorder rows of a query or key projection [heads * dim, in] to neighbouring rotary pairs.

    Hugging Face rotates row i of a head with row i + dim / 2; llama.cpp's "llama" architecture i with i + 1.
    """
    rows, columns = matrix.shape
    halves = matrix.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def stack_experts(
    tensors: Iterable[tuple[str, NDArray[np.float32]]], shape: Shape
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the tensors, the matrices of a layer's experts as one [experts, out, in] once all were met."""
    import numpy as np

    met: dict[str, dict[int, NDArray[np.float32]]] = {}
    for name, values in tensors:
        if ".experts." not in name:
            yield name, values
            continue
        start, _, rest = name.partition(".experts.")
        number, _, projection = rest.partition(".")
        together = f"{start}.experts.{projection}"
        matrices = met.setdefault(together, {})
        matrices[int(number)] = values
        if shape.experts is not None and len(matrices) == shape.experts.total:
            del met[together]
            yield together, np.stack([matrices[expert] for expert in range(shape.experts.total)])


def export(model: Path, kind: str) -> None:
    """Write the file; it takes its name only when it is complete."""
    import gguf

    config = json.loads((model / "config.json").read_text())
    shape = shape_of(config)
    path = gguf_path(model, kind)
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, ARCHITECTURES[shape.architecture])
    _add_sizes(writer, shape)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType[KINDS[kind].file_type])
    _add_tokenizer(writer, json.loads((model / "tokenizer.json").read_text(encoding="utf-8")))
    _add_tensors(writer, model, shape, gguf.GGMLQuantizationType[KINDS[kind].tensor_type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


def quantize(model: Path, kind: str) -> None:
    """Write the file by llama.cpp; as complete as the other."""
    import llama_cpp

    source, path = gguf_path(model, "bf16"), gguf_path(model, kind)
    if not source.exists():
        export(model, "bf16")
    part = path.with_suffix(".part")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{KINDS[kind].file_type}")
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(part).encode(), params)
    if code:
        raise SystemExit(f"llama_model_quantize returned {code}")
    part.rename(path)


def _add_sizes(writer: Any, shape: Shape) -> None:
    writer.add_vocab_size(shape.vocab_size)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    if shape.experts is not None:
        writer.add_expert_count(shape.experts.total)
        writer.add_expert_used_count(shape.experts.chosen)
        writer.add_expert_feed_forward_length(shape.experts.size)


def _add_tokenizer(writer: Any, tokenizer: dict[str, Any]) -> None:
    import gguf

    texts = {i: (text, gguf.TokenType.NORMAL) for text, i in tokenizer["model"]["vocab"].items()}
    for token in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        texts[token["id"]] = (token["content"], kind)
    rows = [texts[i] for i in range(len(texts))]
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([text for text, _ in rows])
    writer.add_token_types([kind for _, kind in rows])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(3)
    writer.add_add_bos_token(False)


def _add_tensors(writer: Any, model: Path, shape: Shape, wanted: Any) -> None:
    import gguf

    heads = {"q_proj": shape.num_heads, "k_proj": shape.num_kv_heads}
    for name, values in stack_experts(read_bf16(model), shape):
        projection = name.split(".")[-2]
        if shape.architecture == "llama" and projection in heads:
            values = interleave_heads(values, heads[projection])
        # Norms and routers stay floats, as llama.cpp's own converter leaves them.
        if values.ndim == 1 or name.endswith("mlp.gate.weight"):
            writer.add_tensor(gguf_name(name), values)
            continue
        fits = values.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0
        kind = wanted if fits else gguf.GGMLQuantizationType.BF16
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write = export if KINDS[sys.argv[2]].tensor_type else quantize
    write(folder, sys.argv[2])

"""How does llama.cpp make vectors of a BertModel? Through libllama, of a GGUF file written for it.

Needs the packages gguf and llama-cpp-python, or its Python files and LLAMA_CPP_LIB_PATH for a library of
one's own, as `python -m benchmarks.compare setup DIR --peers llamacpp` builds it below DIR/venvs/llamacpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.embedding_shapes import LONGEST, Shape

if TYPE_CHECKING:
    import torch

LAYER_NAMES = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
MODEL_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
# Tokens of one pass, llama.cpp's default: sentences of one pass see each other's keys, if only to mask them.
BATCH_TOKENS = 512


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a tensor of a BertModel."""
    stem, _, kind = name.rpartition(".")
    if stem in MODEL_NAMES:
        return f"{MODEL_NAMES[stem]}.{kind}"
    layer, rest = stem.removeprefix("encoder.layer.").split(".", 1)
    return f"blk.{layer}.{LAYER_NAMES[rest]}.{kind}"


def write_gguf(path: Path, shape: Shape, tensors: Iterator[tuple[str, torch.Tensor]], matrices: str) -> None:
    """Write an encoder without a tokenizer.

    Args:
        path: of the file.
        shape: of the model.
        tensors: of a BertModel, by its names.
        matrices: the layers' type, "F32" or "BF16"; all else is float32.
    """
    import gguf

    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(512)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("no_vocab")
    writer.add_token_type_count(2)
    for name, tensor in tensors:
        values = tensor.float().numpy()
        if name == "embeddings.word_embeddings.weight":
            writer.add_vocab_size(len(values))
        of_layer = name.startswith("encoder.") and values.ndim == 2
        kind = gguf.GGMLQuantizationType[matrices if of_layer else "F32"]
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaEmbedder:
    """A GGUF encoder in libllama.

    Args:
        path: file.
        threads: that compute.
    """

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        self._lib = llama_cpp
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        self._width = llama_cpp.llama_model_n_embd(model)
        params = llama_cpp.llama_context_default_params()
        params.embeddings = True
        params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_MEAN
        params.n_ctx = params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = BATCH_TOKENS // 2
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._batch: Any = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def __call__(self, sentences: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Return vectors [sentences, width] of length 1; as many sentences share a pass as fit.

        Args:
            sentences: token ids, at most 256 each.
        """
        vectors = np.empty((len(sentences), self._width), np.float32)
        begun: list[int] = []
        used = 0
        for i, sentence in enumerate(sentences):
            assert len(sentence) <= LONGEST
            if used + len(sentence) > BATCH_TOKENS:
                self._pass(sentences, begun, vectors)
                begun, used = [], 0
            begun.append(i)
            used += len(sentence)
        self._pass(sentences, begun, vectors)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def _pass(
        self, sentences: Sequence[Sequence[int]], chosen: Sequence[int], vectors: npt.NDArray[np.float32]
    ) -> None:
        batch, place = self._batch, 0
        for seq, i in enumerate(chosen):
            for position, token in enumerate(sentences[i]):
                batch.token[place] = token
                batch.pos[place] = position
                batch.n_seq_id[place] = 1
                batch.seq_id[place][0] = seq
                batch.logits[place] = 1
                place += 1
        batch.n_tokens = place
        if self._lib.llama_encode(self._context, batch):
            raise RuntimeError("llama_encode failed")
        for seq, i in enumerate(chosen):
            found = self._lib.llama_get_embeddings_seq(self._context, seq)
            size = ctypes.sizeof(ctypes.c_float) * self._width
            vectors[i] = np.frombuffer(ctypes.string_at(found, size), np.float32)

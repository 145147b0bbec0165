"""What does llama.cpp lose on texts? Runs with the Python of its environment, for perplexity.py.

    python -m benchmarks.compare.llama_losses FILE < TEXTS > LOSSES

TEXTS is a JSON list of texts, each a list of token ids, LOSSES the negative logarithms of the probabilities
of their tokens behind the first. Each text begins an empty context; keys and values are kept in float32.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.compare.engines.base import NUM_CORES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Losses:
    """A file in libllama.

    Args:
        path: of the file.
        max_tokens: of a text.
    """

    def __init__(self, path: str, max_tokens: int) -> None:
        import llama_cpp

        self._lib = llama_cpp
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = max_tokens
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.n_threads = params.n_threads_batch = NUM_CORES
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch: Any = llama_cpp.llama_batch_init(max_tokens, 0, 1)

    def of(self, tokens: Sequence[int]) -> list[float]:
        """Return those of a text's tokens behind the first."""
        import numpy as np

        logits = self._logits(tokens)[:-1].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(logits)), np.asarray(tokens[1:])]
        return [float(loss) for loss in np.log(np.exp(logits).sum(axis=1)) - chosen]

    def _logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return [T, V], valid until the next call."""
        import numpy as np

        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        batch = self._batch
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row], batch.logits[row] = token, row, True
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
        code = self._lib.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        pointer = ctypes.cast(self._lib.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, shape=(len(tokens), self._vocab_size))


def main() -> None:
    """Read the texts, write their losses."""
    texts = json.load(sys.stdin)
    losses = Losses(sys.argv[1], max(map(len, texts)))
    json.dump([losses.of(tokens) for tokens in texts], sys.stdout)


if __name__ == "__main__":
    main()

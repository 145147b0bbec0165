"""What does `--fit` print? What a model takes, what is left for the KV cache, and what fits into that."""

from __future__ import annotations

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.ipc.worker_messages import MemoryNeed, WorkerReady
from splitserve.engine_core.server.kv_sizing import KVSize, model_len, row_bounds, size_kv_cache
from splitserve.engine_core.settings.flag_values import shown_bytes

_LABEL_WIDTH = 18
_SIZE_WIDTH = 11
# Lengths of sequences, in tokens, of which it says how many fit.
_LENGTHS = (1024, 4096, 16384, 65536, 262144)


class FitReport:
    """The report on one model.

    Args:
        config: of the engine.
        need: of each of its workers.

    Attributes:
        fits: weights, activations and a KV cache of the size that was asked for, or of one block, fit.

    Raises:
        ConfigError: the KV cache or the context length asked for cannot be.
    """

    def __init__(self, config: EngineConfig, need: MemoryNeed) -> None:
        self._config = config
        self._need = need
        self._left_bytes = need.free_bytes - need.weights_bytes - need.activation_bytes
        self._longest = model_len(config, need.model)
        self._size: KVSize | None = None
        # The error of a cache without memory would speak of flags that do not help.
        if self._left_bytes >= need.block_bytes:
            self._size = size_kv_cache(config, WorkerReady(need.model, need.block_bytes, self._offered, 0.0))
        self.fits = self._size is not None and self._size.num_bytes <= self._left_bytes

    @property
    def lines(self) -> list[str]:
        """The lines of the report."""
        lines = [self._first_line, *self._needs]
        if self._size is not None and self._need.block_bytes:
            lines += self._cache_lines(self._size)
        elif not self._need.block_bytes:
            lines.append(self._line("KV cache", 0, "prompts are computed whole and leave nothing behind"))
        return [*lines, self._verdict]

    @property
    def _offered(self) -> int:
        """What a worker gives to the cache: of a GPU what is left, which may be less than a block."""
        return max(self._need.available_bytes, min(self._left_bytes, self._need.block_bytes))

    @property
    def _first_line(self) -> str:
        model, ranks = self._need.model, self._config.num_ranks
        each = f", each of {ranks} workers" if ranks > 1 else ""
        quantized = "" if model.quantization == "none" else f", {model.quantization}"
        return (
            f"{model.path}: {model.architecture}, {model.num_params / 1e6:,.0f} M parameters, "
            f"{model.dtype}{quantized}, on {self._need.device}{each}"
        )

    @property
    def _needs(self) -> list[str]:
        need, config = self._need, self._config
        step = f"of a step of {config.max_num_batched_tokens} tokens, estimated"
        others = [f"{name}: {shown_bytes(size)}" for name, size in need.alternatives.items()]
        note = f"with --quantization {', '.join(others)}" if others else ""
        return [
            self._line("free memory", need.free_bytes),
            self._line("weights", need.weights_bytes, note),
            self._line("activations", need.activation_bytes, step),
            self._line("left", self._left_bytes),
        ]

    def _cache_lines(self, size: KVSize) -> list[str]:
        token_bytes = size.num_bytes // size.num_tokens
        lines = [
            self._line(
                "KV cache",
                size.num_bytes,
                f"{self._cause}, {size.num_tokens:,} tokens of {shown_bytes(token_bytes)}",
            )
        ]
        most_blocks = self._left_bytes // self._need.block_bytes
        most = row_bounds(self._config, self._need.model, most_blocks).max_cached_tokens
        most = most or most_blocks * self._config.block_size
        if most > size.num_tokens:
            note = f"{most:,} tokens, at most, by --kv-cache-memory-bytes"
            lines.append(self._line("", self._left_bytes, note))
        longest = min(self._longest, size.num_tokens)
        lines.append(
            self._line_of("longest sequence", f"{longest:,} tokens of the model's {self._longest:,}")
        )
        lines.append(self._line_of("at once", self._concurrency(size)))
        return lines

    @property
    def _cause(self) -> str:
        config = self._config
        if config.num_blocks:
            return "by --num-blocks"
        return "by --kv-cache-memory-bytes" if config.kv_cache_memory_bytes else "by default"

    def _concurrency(self, size: KVSize) -> str:
        """How many sequences of some lengths fit, up to --max-num-seqs."""
        bounds, shown = row_bounds(self._config, self._need.model, size.num_blocks), []
        for length in (*(each for each in _LENGTHS if each < self._longest), self._longest):
            if count := bounds.num_sequences(size.num_blocks, length):
                shown.append(f"{min(count, self._config.max_num_seqs)} of {length:,} tokens")
        return ", ".join(shown) or "none of its longest sequences"

    @property
    def _verdict(self) -> str:
        need = self._need
        if self.fits:
            return self._line_of("it fits", f"at most {self._config.max_num_seqs} sequences at once")
        wanted = need.weights_bytes + need.activation_bytes + (self._size.num_bytes if self._size else 0)
        fitting = [
            f"--quantization {name}"
            for name, size in need.alternatives.items()
            if wanted - need.weights_bytes + size <= need.free_bytes
        ]
        advice = f"; try {' or '.join(fitting)}" if fitting else ""
        text = f"{shown_bytes(wanted)} are needed, {shown_bytes(need.free_bytes)} are free{advice}"
        return self._line_of("it does not fit", text)

    def _line(self, label: str, num_bytes: int, note: str = "") -> str:
        size = f"-{shown_bytes(-num_bytes)}" if num_bytes < 0 else shown_bytes(num_bytes)
        return self._line_of(label, f"{size:>{_SIZE_WIDTH}}  {note}")

    def _line_of(self, label: str, text: str) -> str:
        return f"  {label:<{_LABEL_WIDTH}}{text}".rstrip()

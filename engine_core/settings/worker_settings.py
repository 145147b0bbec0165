"""Which settings a worker gets: its place on its command line, how to compute in the message `Configure`."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration, 10 ms in all.
import re
from typing import Annotated

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.checks import check_address
from splitserve.engine_core.settings.flag_values import parse_bytes, parse_dtype, parse_kv_cache_dtype
from splitserve.engine_core.settings.parallel_settings import MAX_RANKS
from splitserve.engine_core.settings.setting import Setting, Settings
from splitserve.engine_core.settings.shared import QUANTIZATIONS, LogFormat, LogLevel
from splitserve.engine_core.settings.speculation_settings import SpeculationSettings

# What certainly fits one message (64 MiB): a step's prompt logprobs, at about 190 bytes per token, and a row
# with all its token ids, at 4 bytes each.
MAX_STEP_TOKENS = 2**18
MAX_SEQUENCE_TOKENS = 2**23

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "bfloat16", "fp8", "int8")
MODEL_IMPLS = ("auto", "native", "transformers")
TASKS = ("auto", "generate", "embed", "score")
DEVICES = ("auto", "cpu", "cuda")
ISAS = ("auto", "portable", "avx2", "avx512", "avx512_bf16", "amx", "neon_dot", "neon_bf16")
ATTENTION_BACKENDS = ("auto", "cpu", "cuda", "flash_attn", "torch")


class WorkerSettings(SpeculationSettings, frozen=True, kw_only=True):
    """Settings of an engine that it passes on to every worker in `Configure`."""

    model: Annotated[
        str,
        Setting(
            "checkpoint directory, GGUF file, or Hugging Face id",
            "model",
            metavar="DIR|ID",
            default="the demo model that ships with the package",
            serve=False,
        ),
    ] = ""
    dtype: Annotated[
        str,
        Setting(
            "data type of weights and activations; auto uses the checkpoint's",
            "model",
            choices=DTYPES,
            parse=parse_dtype,
            docs="; also `float`, `fp32`, `bf16`, `half`, `fp16`",
            llm=True,
        ),
    ] = "auto"
    quantization: Annotated[
        str,
        Setting(
            "quantize the weights to integers while loading, with w8a8 activations, too; needs bfloat16 or, "
            "on a GPU, float16",
            "model",
            choices=QUANTIZATIONS,
            docs=", see [models](models.md#quantized-weights)",
            llm=True,
        ),
    ] = "none"
    task: Annotated[
        str,
        Setting(
            "what the model is for; auto goes by the checkpoint: text, embeddings, scores or classes",
            "model",
            choices=TASKS,
            docs=", see [embeddings](embeddings.md)",
            llm=True,
        ),
    ] = "auto"
    model_impl: Annotated[
        str,
        Setting(
            "whose layers make up the model; auto takes those of transformers where none are native",
            "model",
            choices=MODEL_IMPLS,
            docs=", see [models](models.md#models-of-the-transformers-library)",
            llm=True,
        ),
    ] = "auto"
    max_model_len: Annotated[
        int,
        Setting(
            "maximum sequence length, prompt plus output; 0 = the model's limit",
            "model",
            metavar="TOKENS",
            low=0,
            high=MAX_SEQUENCE_TOKENS,
            llm=True,
        ),
    ] = 0
    device: Annotated[
        str,
        Setting(
            "device to compute on; auto uses a GPU if there is a usable one",
            "model",
            choices=DEVICES,
            docs=", see [GPUs](gpu.md)",
            llm=True,
        ),
    ] = "auto"
    isa: Annotated[
        str,
        Setting(
            "instruction set of the kernels on a CPU; auto takes the best that the processor has",
            "model",
            choices=ISAS,
            docs=", see [worker](worker.md#instruction-sets)",
            llm=True,
        ),
    ] = "auto"
    attention_backend: Annotated[
        str,
        Setting(
            "attention implementation; auto picks one for the device and logs why",
            "model",
            choices=ATTENTION_BACKENDS,
            docs=", see [GPUs](gpu.md#attention-backends)",
            llm=True,
        ),
    ] = "auto"
    batch_invariant: Annotated[
        bool,
        Setting(
            "make a request's tokens independent of the batch on a GPU too, at some cost; always so on a CPU",
            "model",
            negatable=True,
            docs=", see [GPUs](gpu.md#the-same-bits-in-any-batch)",
            llm=True,
        ),
    ] = False
    enforce_eager: Annotated[
        bool,
        Setting(
            "launch every kernel of a step individually instead of using graphs",
            "model",
            negatable=True,
            docs="; same tokens, slower, see [worker](worker.md#recorded-decode-steps)",
            llm=True,
        ),
    ] = False
    block_size: Annotated[
        int,
        Setting(
            "tokens per KV block, an even number",
            "KV cache",
            metavar="TOKENS",
            low=2,
            high=256,
            docs="; multiples of 16 are fastest on the CPU",
            llm=True,
        ),
    ] = 16
    kv_cache_dtype: Annotated[
        str,
        Setting(
            "data type of the KV cache; auto keeps the model's, or what its checkpoint asks for; fp8 and "
            "int8 take half of bfloat16",
            "KV cache",
            choices=KV_CACHE_DTYPES,
            parse=parse_kv_cache_dtype,
            docs="; also `bf16`, `fp8_e4m3`, see [worker](worker.md#a-kv-cache-of-codes)",
            llm=True,
        ),
    ] = "auto"
    kv_cache_memory_bytes: Annotated[
        int,
        Setting(
            "memory for the KV cache, e.g. 4G; 0 = what the worker can spare",
            "KV cache",
            metavar="BYTES",
            low=0,
            high=2**50,
            parse=parse_bytes,
            llm=True,
        ),
    ] = 0
    gpu_memory_utilization: Annotated[
        float,
        Setting(
            "fraction of a GPU's memory that a worker may use, weights included",
            "KV cache",
            metavar="FRACTION",
            low=0.05,
            high=1,
            llm=True,
        ),
    ] = 0.9
    max_num_seqs: Annotated[
        int, Setting("maximum number of sequences running at once", "scheduling", low=1, high=65536, llm=True)
    ] = 256
    max_num_batched_tokens: Annotated[
        int,
        Setting(
            "maximum number of tokens computed in one step",
            "scheduling",
            metavar="TOKENS",
            low=1,
            high=MAX_STEP_TOKENS,
            llm=True,
        ),
    ] = 2048
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"

    def validate(self) -> None:
        """Check every value against its declaration, and the constraints between settings.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        if self.block_size % 2:
            raise ConfigError(f"--block-size must be even, got {self.block_size}")
        if self.speculation is not None:
            self._check_speculation()

    def _check_speculation(self) -> None:
        if self.task in ("embed", "score"):
            raise ConfigError(f"--task {self.task} makes no text to draft: add --speculate none")
        if self.attention_backend not in ("auto", *DEVICES):
            raise ConfigError(
                "--speculate works with the server's own kernels, not with --attention-backend "
                f"{self.attention_backend}: add --speculate none"
            )


class WorkerPlace(Settings, frozen=True, kw_only=True):
    """Where a worker finds its engine and the other ranks."""

    connect: Annotated[str, Setting("the engine's socket for workers", "place", metavar="ADDR")]
    rank: Annotated[
        int,
        Setting("index of this worker, and its identity on the socket", "place", low=0, high=MAX_RANKS - 1),
    ]
    rendezvous: Annotated[
        str,
        Setting(
            "where the ranks meet, file:///PATH or tcp://HOST:PORT",
            "place",
            metavar="URL",
            default="none, for a single rank",
        ),
    ] = ""
    rendezvous_fd: Annotated[
        int,
        Setting(
            "socket of rank 0 that listens at a tcp rendezvous; -1 = open one, on all interfaces",
            "place",
            metavar="FD",
            low=-1,
            high=2**31 - 1,
        ),
    ] = -1

    def validate(self) -> None:
        """Check every value against its declaration.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        check_address("--connect", self.connect)
        if not re.fullmatch(r"|file:///.{1,200}|tcp://[^/]{1,200}:\d{1,5}", self.rendezvous):
            raise ConfigError(
                f"--rendezvous must be file:///PATH or tcp://HOST:PORT, got {self.rendezvous!r}"
            )

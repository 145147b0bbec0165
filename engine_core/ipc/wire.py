"""What do all links share? The options of wire structs, the protocol version; and parts of messages.

Each message is one msgpack array whose first element is its integer tag, so one closed union of structs per
direction decodes it, and no message names a class or a method. Columns (token ids, handles, rows) are packed
little-endian arrays inside `bytes`; `engine_core.ipc.codec` packs and unpacks them.

    link                       module           direction            union
    api-frontend, engine-core  messages         frontend -> engine   FrontendMessage
                                                engine -> frontend   EngineMessage
    engine-core, worker        worker_messages  engine -> worker     ToWorkerMessage
                                                worker -> engine     FromWorkerMessage

The messages of `launcher_messages` travel as JSON, between an engine and the launcher of its Ray workers.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PROTOCOL_VERSION = 17
# The stage of an engine that recovers once it is woken up.
ASLEEP = "asleep"


Task = Literal["generate", "embed", "score", "classify"]
LogLevelName = Literal["debug", "info", "warning", "error"]


class Wire(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Options shared by all wire structs."""


class ModelInfo(Wire, frozen=True):
    """What engine and frontends need to know about the served model; the worker reads it from the checkpoint.

    Attributes:
        path: model directory as the engine sees it.
        architecture: e.g. "LlamaForCausalLM".
        dtype: "float32", "bfloat16" or "float16".
        vocab_size: rows of the embedding; valid token ids are 0..vocab_size-1.
        max_model_len: longest sequence, prompt and output together, in tokens. Frontends are told the
            smallest of the model's limit, the engine's configuration and what fits the KV pool.
        eos_token_ids: ids that end a request unless ignore_eos is set.
        num_params: number of parameters.
        sliding_window: widest attention window of the layers in tokens; 0 if some see all tokens.
        quantization: format of the quantized weights, "int8", "int4" or "w8a8", or "none".
        embedding_size: elements of the vector that the model makes of a prompt; 0 if it generates text.
        normalizes: whether its vectors are meant to be brought to length 1.
        labels: of a model that classifies prompts, or scores them if there is one: each gets a number.
        score_function, class_function: what makes them scores and probabilities, see
            checkpoint.config.classifier.
        pools_all: it reads the states of all tokens of a prompt, so a cached prefix is of no use.
        has_token_vectors: it makes a vector of each token, too.
        judges: its only label is its own answer yes, for which two texts become a chat.
        numerics: names what decides the last bit of a logit besides the weights: release, device, instruction
            set, attention backend, split. Engines with the same value compute the same bits.
        group_windows: if layers differ in what they see and the workers keep blocks for each group of them:
            the window of each group behind the first, the widest of its layers', the widest group first.
            Empty if every block is one of all layers.
    """

    path: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: list[int]
    num_params: int = 0
    sliding_window: int = 0
    quantization: str = "none"
    numerics: str = ""
    embedding_size: int = 0
    normalizes: bool = True
    labels: list[str] = []
    score_function: str = ""
    class_function: str = ""
    judges: bool = False
    pools_all: bool = False
    has_token_vectors: bool = False
    group_windows: list[int] = []

    @property
    def num_window_groups(self) -> int:
        """Groups of layers behind the first that have KV blocks of their own."""
        return len(self.group_windows)

    @property
    def pooled_size(self) -> int:
        """Numbers that the model makes of a prompt; 0 if it generates text."""
        return self.embedding_size or len(self.labels)

    @property
    def task(self) -> Task:
        """What the model is for."""
        if self.labels:
            return "score" if len(self.labels) == 1 else "classify"
        return "embed" if self.embedding_size else "generate"


class AdapterInfo(Wire, frozen=True):
    """An adapter that requests may name.

    Attributes:
        name: of the adapter.
        path: its directory, as the engine sees it.
        digest: hex SHA-256 of its files; "" until it was loaded for the first time.
    """

    name: str
    path: str
    digest: str = ""


class Pooled(Wire, frozen=True):
    """The vector of one prompt.

    Attributes:
        key: the row on the way from the worker, the handle on the way to the frontend.
        values: float32 column.
    """

    key: int
    values: bytes


class DraftCounts(Wire, frozen=True):
    """What one drafter has drafted, by place behind the last token of a row.

    Attributes:
        method: its name.
        drafted: drafts in the first place, in the second, and so on.
        counted: as many, those of them that counted.
    """

    method: str
    drafted: list[int]
    counted: list[int]


class TokenLogprobs(Wire, frozen=True):
    """Logprobs of one token: element 0 of both columns is the token itself, then come the top k alternatives,
    then the request's m logprob_token_ids in their order (not for prompt tokens).

    Attributes:
        key: handle on the frontend link, row on the worker link.
        token_index: index of the token within the request's output (prompt logprobs: within the prompt).
        rank: 1-based rank of the token itself.
        token_ids: int32 column [1 + k + m].
        logprobs: float32 column [1 + k + m].
    """

    key: int
    token_index: int
    rank: int
    token_ids: bytes
    logprobs: bytes


class BlockMap(Wire, frozen=True):
    """The KV pool, block by block, or every n-th block of a large one.

    Attributes:
        states: uint8 column; 0 free, 1 free with a cached prefix, 2 used by one sequence, 3 by several.
        blocks_per_cell: n.
        num_idle_cached: free blocks that hold a cached prefix, of all.
    """

    states: bytes
    blocks_per_cell: int = 1
    num_idle_cached: int = 0


class StepColumns(Wire, frozen=True):
    """The last steps in their order; int32 columns of equal length.

    Attributes:
        first_step: number of the first; the others follow it.
        ago_us: microseconds since each ended.
        time_us: how long it took.
        num_rows: that it computed.
        num_prefill_tokens, num_decode_tokens: tokens of rows that computed several, and of those with one.
        num_preemptions: between it and the step before.
    """

    first_step: int
    ago_us: bytes
    time_us: bytes
    num_rows: bytes
    num_prefill_tokens: bytes
    num_decode_tokens: bytes
    num_preemptions: bytes


class TenantShare(Wire, frozen=True):
    """How many sequences of a tenant, or of `num_others` other tenants together, run and wait now."""

    tenant: str
    num_running: int
    num_waiting: int
    num_others: int = 0


class EngineView(Wire, frozen=True):
    """What an engine shows to who watches it; max_num_seqs is the number of its rows."""

    blocks: BlockMap
    steps: StepColumns
    tenants: list[TenantShare]
    max_num_seqs: int

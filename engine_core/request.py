"""One sequence on the engine: what was asked, what is known of it, and the checks every new one passes.

Life of a request:

    state     row   blocks  left by
    WAITING   none  none    admission -> RUNNING; abort, timeout -> ENDED
    RUNNING   yes   yes     preemption -> WAITING; finish, abort, timeout, row error -> ENDED
    ENDED     none  none    -
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from splitserve.engine_core.adapter import Adapter
from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.messages import AddRequest, FinishReason
from splitserve.engine_core.repetition import RepetitionTail
from splitserve.engine_core.sequence_sampling import MAX_PRIORITY, MAX_STEP_LOGPROBS, SequenceSampling

FrontendId: TypeAlias = bytes
"""ZMQ identity of a frontend; the engine only compares and hashes it."""

TOKEN_BYTES = 4
MAX_HANDLE = 2**63 - 1
MAX_NAME_CHARS = 256
MAX_TIMEOUT_S = 7 * 86400.0


class RequestState(enum.Enum):
    """Where a request stands; see the table above."""

    WAITING = 0
    RUNNING = 1
    ENDED = 2


class RequestLimits(NamedTuple):
    """What this engine can take.

    Attributes:
        vocab_size: valid token ids are 0..vocab_size-1.
        max_model_len: longest sequence by configuration and model, in tokens.
        max_cached_tokens: longest sequence whose KV fits the pool; of a sliding window the last part only.
            Without a KV cache: the longest that one step computes.
        pools: the model makes vectors of prompts instead of generating text.
        pools_all: it reads the states of all tokens.
        pools_tokens: it makes vectors of tokens, too.
        drafts: tokens are drafted ahead, for which predictions are of use.
    """

    vocab_size: int
    max_model_len: int
    max_cached_tokens: int
    pools: bool = False
    pools_all: bool = False
    pools_tokens: bool = False
    drafts: bool = False

    @property
    def max_num_tokens(self) -> int:
        """The length at which every sequence ends.

        A sequence longer than the pool could only go on by evicting itself, for ever, so the pool bounds it
        too.
        """
        return min(self.max_model_len, self.max_cached_tokens)


@dataclass(slots=True, eq=False)
class Siblings:
    """The sequences of one client's request here: taken in together, and asked to leave together.

    Attributes:
        tenant, frontend: who holds their places in the queue.
        priority: lower is more urgent; 0 under a policy that does not heed it.
        arrival: of the first of them.
        has_begun: one of them runs or has run, here or elsewhere: no wait ends them any more.
        waiting: those that wait and never ran, by arrival.
        num_tokens: of these.
    """

    tenant: str = ""
    frontend: FrontendId = b""
    priority: int = 0
    arrival: int = 0
    has_begun: bool = False
    waiting: dict[int, Request] = field(default_factory=dict)
    num_tokens: int = 0

    @property
    def sizes(self) -> tuple[int, int]:
        """How many wait, and their tokens."""
        return len(self.waiting), self.num_tokens

    def add(self, request: Request) -> None:
        """Count a new sequence that waits."""
        self.waiting[request.arrival] = request
        self.num_tokens += request.num_stored_tokens
        self.has_begun |= request.num_stored_tokens > request.num_prompt_tokens


@dataclass(slots=True, eq=False)
class Request:
    """One sequence; owned by the engine's thread.

    Attributes:
        frontend: who gets its outputs.
        handle: name of the request on that frontend's link.
        frontend_idx: small integer of the frontend, for the columns; -1 until the request is open.
        sort_key: (priority or 0, arrival); smaller runs earlier and is preempted later.
        arrival: counter over all requests of this engine.
        arrival_s, deadline_s: seconds of the engine's clock; the deadline is inf without a timeout.
        token_ids: int32 column of the known tokens. While the request runs, up to block_size - 1 newer ones
            stand in the row's tail (engine_core.scheduler.running) instead.
        num_prompt_tokens: length of the prompt; all other tokens are output.
        max_num_tokens: sequence length at which the request ends with LENGTH.
        tenant, cache_salt: who may share its KV.
        namespace: start of its hash chain, made of both and the adapter.
        block_hashes: chain hashes of its full blocks, as far as they were needed.
        row: row of the running batch, -1 without one.
        queue_time_s: seconds it waited before it first ran.
        num_released_tokens: known tokens when it last left its row; without a row there are never more.
        num_cached_tokens: prefix tokens found in the cache when it first left the queue.
        num_prompt_logprobs: prompt logprobs sent so far; a recomputed prompt must not send them again.
        priority: as asked for; sort_key has it under the priority policy only.
        fair_slot: its tenant's counter under the fair policy.
        repetition: of its emitted tokens, if it is to end when they go round in a loop.
        leader: running request whose prefix it waits for, see engine_core.scheduler.waiting.followers.
        num_awaited_tokens: tokens of the leader's prefix that it waits for, whole blocks.
        streams: its tokens are sent as they come; otherwise they may be gathered.
        siblings: the request that it is a sequence of.
        second_at: index of the first token of the second text of a pair, 0 if there is none.
        pools_all: the states of all of its tokens are needed.
        pools_tokens: the vector of each token is wanted.
        num_draft_tokens, num_accepted_draft_tokens: tokens drafted for it, and those of them that counted.
        adapter: that changes the model, None for none.
        predicted: int32 column of what its output is expected to be like; empty where nothing is drafted.
    """

    frontend: FrontendId
    handle: int
    request_id: str
    sampling: SequenceSampling
    sort_key: tuple[int, int]
    arrival: int
    arrival_s: float
    deadline_s: float
    token_ids: bytearray
    num_prompt_tokens: int
    max_num_tokens: int
    tenant: str
    cache_salt: str
    namespace: bytes
    frontend_idx: int = -1
    block_hashes: list[bytes] = field(default_factory=list)
    state: RequestState = RequestState.WAITING
    row: int = -1
    was_started: bool = False
    queue_time_s: float = 0.0
    num_released_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_prompt_logprobs: int = 0
    priority: int = 0
    fair_slot: int = 0
    repetition: RepetitionTail | None = None
    leader: Request | None = None
    num_awaited_tokens: int = 0
    streams: bool = True
    siblings: Siblings = field(default_factory=Siblings)
    second_at: int = 0
    pools_all: bool = False
    pools_tokens: bool = False
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    adapter: Adapter | None = None
    predicted: bytes = b""

    @property
    def adapter_key(self) -> str:
        """What its hash chain says of the adapter, "" for none."""
        return "" if self.adapter is None else self.adapter.key

    @property
    def num_stored_tokens(self) -> int:
        """Tokens in `token_ids`; all known ones unless the request runs."""
        return len(self.token_ids) // TOKEN_BYTES

    @property
    def needs_all_tokens(self) -> bool:
        """Whether the prompt must be computed in full, whatever is cached."""
        return self.pools_all or self.wants_prompt_logprobs

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt logprobs are due; once a token was emitted they have all been sent."""
        return self.sampling.prompt_logprobs is not None and self.num_stored_tokens == self.num_prompt_tokens

    def sampling_for_worker(self) -> SequenceSampling:
        """Return the parameters of its next row: prompt logprobs are asked for only while they are due."""
        if self.sampling.prompt_logprobs is None or self.wants_prompt_logprobs:
            return self.sampling
        return msgspec.structs.replace(self.sampling, prompt_logprobs=None)


class EndedRequest(NamedTuple):
    """A request that ended, and why; stop_token_id is None unless one of its stop_token_ids matched."""

    request: Request
    reason: FinishReason
    stop_token_id: int | None = None
    error_code: str = ""
    error_message: str = ""
    error_status: int = 500
    retry_after_s: float = 0.0


class RequestSummary(NamedTuple):
    """One request at its end, for the log; counts are tokens, times are seconds.

    Attributes:
        outcome: "stop", "length", "repetition", "error", or "abort", also when its frontend is gone.
        num_output_tokens: of this and, for a resumed request, of earlier lives.
        total_time_s: since it arrived here.
    """

    request_id: str
    frontend: FrontendId
    outcome: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    queue_time_s: float
    total_time_s: float


class CheckedRequest(NamedTuple):
    """The parts of an AddRequest that needed checking.

    Attributes:
        token_ids: int32 column, prompt then resumed tokens.
        num_prompt_tokens: length of the prompt.
        max_num_tokens: sequence length at which it ends.
        sampling: with a seed.
        repetition: fed with the resumed tokens; None if it was not asked for.
        predicted: int32 column, empty where nothing is drafted.
    """

    token_ids: bytearray
    num_prompt_tokens: int
    max_num_tokens: int
    sampling: SequenceSampling
    repetition: RepetitionTail | None
    predicted: bytes = b""


def check_request(message: AddRequest, limits: RequestLimits) -> CheckedRequest:
    """Check everything about a request that does not depend on other requests.

    Raises:
        InvalidRequestError: a field is out of range; names it.
        ContextLengthError: the prompt leaves no room for a token.
        ProtocolError: a column is malformed.
    """
    _check_scalars(message)
    sampling = message.sampling
    sampling.validate(limits.vocab_size, MAX_STEP_LOGPROBS)
    _check_pooling(message, limits)
    if sampling.seed is None:
        sampling = msgspec.structs.replace(sampling, seed=0)
    prompt = unpack_int32(message.prompt_token_ids)
    resumed = unpack_int32(message.resume_token_ids)
    if len(prompt) == 0:
        raise InvalidRequestError("the prompt must contain at least one token", "prompt")
    _check_token_ids("prompt", prompt, limits.vocab_size)
    if not 0 <= message.second_at < len(prompt):
        raise InvalidRequestError(f"second_at must be from 0 to {len(prompt) - 1}", "second_at")
    _check_token_ids("resume_token_ids", resumed, limits.vocab_size)
    max_num_tokens = _max_num_tokens(len(prompt), len(resumed), sampling.max_tokens, limits)
    token_ids = bytearray(message.prompt_token_ids)
    token_ids += message.resume_token_ids
    detection = sampling.repetition_detection
    tail = None if detection is None else RepetitionTail(detection, sampling.min_tokens, resumed)
    predicted = _check_predicted(message, limits)
    return CheckedRequest(token_ids, len(prompt), max_num_tokens, sampling, tail, predicted)


def _check_predicted(message: AddRequest, limits: RequestLimits) -> bytes:
    predicted = unpack_int32(message.predicted_token_ids)
    if len(predicted) > limits.max_model_len:
        raise InvalidRequestError(
            f"a prediction has at most {limits.max_model_len} tokens, got {len(predicted)}", "prediction"
        )
    _check_token_ids("prediction", predicted, limits.vocab_size)
    return message.predicted_token_ids if limits.drafts else b""


def _check_scalars(message: AddRequest) -> None:
    if not 0 <= message.handle <= MAX_HANDLE:
        raise InvalidRequestError(f"handle must be from 0 to {MAX_HANDLE}, got {message.handle}", "handle")
    if not -MAX_PRIORITY <= message.priority <= MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {message.priority}", "priority"
        )
    for name, text in (
        ("request_id", message.request_id),
        ("tenant", message.tenant),
        ("cache_salt", message.cache_salt),
        ("adapter", message.adapter),
        ("adapter_digest", message.adapter_digest),
    ):
        if len(text) > MAX_NAME_CHARS:
            raise InvalidRequestError(f"{name} must have at most {MAX_NAME_CHARS} characters", name)
    for name, seconds in (("timeout_s", message.timeout_s), ("queue_timeout_s", message.queue_timeout_s)):
        # Written so that NaN fails it.
        if not 0 <= seconds <= MAX_TIMEOUT_S:
            raise InvalidRequestError(
                f"{name} must be a number from 0 to {MAX_TIMEOUT_S:.0f}, got {seconds}", name
            )


def _check_pooling(message: AddRequest, limits: RequestLimits) -> None:
    if message.pools != limits.pools:
        text = "makes embeddings, not text" if limits.pools else "generates text, not embeddings"
        raise InvalidRequestError(f"the model {text}", "model")
    if message.pools_tokens and not (message.pools and limits.pools_tokens):
        raise InvalidRequestError(
            "the model makes no vectors of tokens, or too many of them may come of one step", "task"
        )
    if message.pools and message.sampling.max_tokens != 0:
        raise InvalidRequestError(
            f"max_tokens must be 0 for an embedding, got {message.sampling.max_tokens}", "max_tokens"
        )


def _check_token_ids(name: str, token_ids: npt.NDArray[np.int32], vocab_size: int) -> None:
    if len(token_ids) == 0:
        return
    low, high = int(token_ids.min()), int(token_ids.max())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise InvalidRequestError(f"{name} holds token id {wrong}, the model has 0 to {vocab_size - 1}", name)


def _max_num_tokens(num_prompt: int, num_resumed: int, max_tokens: int | None, limits: RequestLimits) -> int:
    limit = limits.max_num_tokens
    # max_tokens = 0 only computes the prompt, so no room for a token is needed.
    needed = num_prompt if max_tokens == 0 else num_prompt + 1
    if needed > limit:
        raise ContextLengthError.of(limit, num_prompt, None, "prompt")
    if num_prompt + num_resumed > limit:
        raise ContextLengthError(
            f"prompt and resumed tokens are {num_prompt + num_resumed} tokens, at most {limit} fit",
            "resume_token_ids",
        )
    return limit if max_tokens is None else min(limit, num_prompt + max_tokens)


def deadline_of(timeout_s: float, now_s: float) -> float:
    """Return the time a request with this timeout ends at; inf for timeout 0."""
    return now_s + timeout_s if timeout_s > 0 else math.inf

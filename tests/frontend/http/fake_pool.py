"""An engine pool without engines: a byte-level tokenizer, one model, and answers scripted by the test."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import math
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.engine_core.errors import EngineUnavailableError, InvalidRequestError
from splitserve.engine_core.ipc.codec import pack_float32
from splitserve.engine_core.ipc.messages import EngineStats, QueueStats, RequestInfo
from splitserve.engine_core.ipc.wire import EngineView, LogLevelName, ModelInfo
from splitserve.engine_core.sequence_sampling import MAX_STEP_LOGPROBS
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta, TokenLogprob
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.status import EngineStatus, Explanation, PoolStats
from splitserve.frontend.engines.stream.engine_generation import Generation
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.chat.pair_template import PairTemplate
from splitserve.frontend.text.chat.template import ChatTemplate, RenderedChat
from splitserve.frontend.text.model_assets import ModelAssets
from splitserve.frontend.text.pairs import Pair
from splitserve.frontend.text.tokenizer import Tokenizer, TokenText
from splitserve.frontend.text.truncation import Truncation

BOS = 256
VOCAB_SIZE = 260
MAX_MODEL_LEN = 256
SPECIAL_TOKENS = {f"<|{token_id}|>": token_id for token_id in (256, 257, 258)}


class ByteDecoder:
    """Decodes one sequence of a ByteTokenizer."""

    def __init__(self, tokenizer: ByteTokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        shown = [token for token in token_ids if token < 256 or not self._skip]
        return self._decoder.decode(b"".join(self._tokenizer.token_text(token).data for token in shown))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)

    def state(self) -> None:
        """Only this object can decode on."""

    def resume(self, held: bytes) -> None:
        raise AssertionError("nothing was handed over")

    def holds_back(self) -> bool:
        return bool(self._decoder.getstate()[0])


class ByteTokenizer(Tokenizer):
    """One token per UTF-8 byte, 256 is BOS, 257 ends a turn, 258 names a role."""

    vocab_size = VOCAB_SIZE
    max_chars_at_once = 4096
    special_ids = frozenset((256, 257, 258))

    def __init__(self) -> None:
        """There is no file."""
        self.special_tokens = self.added_tokens = SPECIAL_TOKENS
        self.config = {
            "tokenizer_class": "ByteTokenizer",
            "bos_token": "<|256|>",
            "name_or_path": "/secret/path",
            "vocab_file": "secret/vocab.json",
            "cache": "/secret/cache",
            "chat_template": "stale",
        }

    def encode(
        self, text: str, add_special_tokens: bool = True, *, parse_special_tokens: bool = False
    ) -> list[int]:
        found = [BOS] if add_special_tokens else []
        parts = re.split(r"(<\|\d+\|>)", text) if parse_special_tokens else [text]
        for part in parts:
            special = self.special_tokens.get(part)
            found += list(part.encode()) if special is None else [special]
        return found

    async def encode_async(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        parse_special_tokens: bool = False,
        max_model_len: int | None = None,
    ) -> list[int]:
        return self.encode(text, add_special_tokens)

    def encode_pair(
        self, first: str, second: str, add_special_tokens: bool = True, truncation: Truncation | None = None
    ) -> Pair:
        """A turn's end stands between the two; of the second, what does not fit is lost."""
        begin = [*self.encode(first, add_special_tokens), 257]
        token_ids = [*begin, *self.encode(second, False)]
        return Pair(token_ids[: truncation.num_tokens if truncation else None], len(begin))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        decoder = self.detokenizer(skip_special_tokens)
        return decoder.push(token_ids) + decoder.finish()

    def detokenizer(
        self,
        skip_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] = (),
        kept_ids: frozenset[int] = frozenset(),
    ) -> ByteDecoder:
        return ByteDecoder(self, skip_special_tokens)

    def token_text(self, token_id: int) -> TokenText:
        if token_id >= 256:
            return TokenText(f"<|{token_id}|>", f"<|{token_id}|>".encode())
        return TokenText(bytes([token_id]).decode("utf-8", "replace"), bytes([token_id]))

    def token_name(self, token_id: int) -> str:
        return f"<0x{token_id:02X}>"


class PlainTemplate(ChatTemplate):
    """Renders `role: content` lines and remembers what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ChatOptions]] = []
        self.sources = {"default": "{{ messages }}"}
        self.opening = ""

    def shows_tools(self, options: ChatOptions) -> bool:
        return True

    async def render_async(
        self,
        messages: Sequence[Message],
        options: ChatOptions | None = None,
        *,
        max_model_len: int | None = None,
    ) -> RenderedChat:
        assert options is not None
        self.calls.append((messages, options))
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        text += f"assistant: {self.opening}" if options.add_generation_prompt else ""
        return RenderedChat(text, list(text.encode()))


class Seen(NamedTuple):
    """A request as the pool got it."""

    model: str
    request: GenerationRequest


Script = Callable[[GenerationRequest], AsyncGenerator[OutputDelta, None]]


def deltas_of(text: str, request: GenerationRequest, *, num_cached: int = 0) -> list[OutputDelta]:
    """One delta per character for each of the n completions, with logprobs where asked for."""
    sampling = request.sampling
    if sampling.max_tokens == 0:
        return [prompt_only_delta(request, index) for index in range(sampling.n)]
    found = []
    for i, char in enumerate(text):
        for index in range(sampling.n):
            ids = list(char.encode())
            delta = OutputDelta(index, char, ids, num_cached_tokens=num_cached)
            if sampling.logprobs is not None:
                delta.logprobs = [
                    fake_logprob(token, sampling.logprobs, sampling.logprob_token_ids) for token in ids
                ]
            if i == index == 0 and sampling.prompt_logprobs is not None:
                delta.prompt_logprobs = fake_prompt_logprobs(request)
            if i == len(text) - 1:
                delta.finish_reason = "stop"
            found.append(delta)
    return found


def prompt_only_delta(request: GenerationRequest, index: int) -> OutputDelta:
    """The one delta of a completion that may have no token."""
    delta = OutputDelta(index, finish_reason="length")
    if index == 0 and request.sampling.prompt_logprobs is not None:
        delta.prompt_logprobs = fake_prompt_logprobs(request)
    return delta


def fake_prompt_logprobs(request: GenerationRequest) -> list[TokenLogprob | None]:
    """None for the first prompt token, fake logprobs for the others."""
    top = request.sampling.prompt_logprobs or 0
    return [None, *(fake_logprob(token, top) for token in request.prompt_token_ids[1:])]


def fake_logprob(token_id: int, top: int, asked: Sequence[int] = ()) -> TokenLogprob:
    """A logprob that can be told from its token id."""
    others = [(token_id + k) % 256 for k in range(top)]
    return TokenLogprob(
        token_id,
        -token_id / 100,
        1,
        [(other, -(token_id + k) / 100) for k, other in enumerate(others)],
        [(other, -other / 100) for other in asked],
    )


async def turns() -> None:
    """Let a stream's task send what has come before."""
    for _ in range(5):
        await asyncio.sleep(0)


class FakeGeneration:
    """Plays a script; it is not asked for more before what came is taken."""

    def __init__(
        self,
        n: int,
        deltas: AsyncGenerator[OutputDelta, None],
        on_ready: Callable[[], None],
        on_close: Callable[[], None],
    ) -> None:
        self.finished = False
        self.behind = False
        # A script's deltas are no tokens of an engine.
        self.only_stream = None
        self._num_open = n
        self._held: list[OutputDelta] = []
        self._taken = asyncio.Event()
        self._error: Exception | None = None
        self._on_ready = on_ready
        self._on_close = on_close
        self._task = asyncio.create_task(self._run(deltas))

    async def _run(self, deltas: AsyncGenerator[OutputDelta, None]) -> None:
        try:
            async with contextlib.aclosing(deltas):
                async for delta in deltas:
                    self._held.append(delta)
                    self._on_ready()
                    while self._held:
                        self._taken.clear()
                        await self._taken.wait()
            # Also that of a script without finish reasons.
            self.finished = True
        except Exception as error:
            self._error = error
        self._on_ready()

    def take(self, max_tokens: int = 1) -> list[OutputDelta]:
        if self._error is not None:
            raise self._error
        taken, self._held = self._held, []
        self._taken.set()
        self._num_open -= sum(delta.finish_reason is not None for delta in taken)
        self.finished = self.finished or not self._num_open
        return taken

    def close(self) -> None:
        self._task.cancel()
        self._on_close()


@dataclass
class FakePool(EnginePool):
    """The surface of EnginePool; `script` makes the answers, `seen` and `closed` tell what happened."""

    script: Script | None = None
    text: str = "Hi there"
    names: tuple[str, ...] = ("org/demo", "alias")
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    state: str = "ready"
    answers: bool = True
    away_s: float = 0.0
    stalled: str = ""
    max_model_len: int = MAX_MODEL_LEN
    embedding_size: int = 0
    labels: list[str] = field(default_factory=list)
    formats: AnswerFormats = field(default_factory=AnswerFormats)
    pair_template: PairTemplate | None = None
    seen: list[Seen] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    asked: list[tuple[list[str], str]] = field(default_factory=list)
    open_requests: list[RequestInfo] = field(default_factory=list)
    engine_view: EngineView | None = None
    log_levels: list[str] = field(default_factory=list)
    sleep_levels: list[int] = field(default_factory=list)
    started: bool = False
    stopped: bool = False

    def __post_init__(self) -> None:
        self.template: PlainTemplate | None = PlainTemplate()
        self.num_closed = asyncio.Event()
        self.stats_now = EngineStats(num_blocks=100, num_free_blocks=75, num_running=2, finished={"stop": 3})
        self.queue_now = QueueStats()

    @property
    def model(self) -> ServedModel:
        assets = ModelAssets(
            tokenizer=ByteTokenizer(),
            chat_template=self.template,
            sampling_defaults=self.defaults,
            eos_token_ids=(257,),
            max_model_len=self.max_model_len,
            vocab_size=VOCAB_SIZE,
            answer_formats=self.formats,
            pair_template=self.pair_template,
        )
        info = ModelInfo(
            "/secret/path",
            "FakeForCausalLM",
            "float32",
            VOCAB_SIZE,
            self.max_model_len,
            [257],
            embedding_size=self.embedding_size,
            labels=self.labels,
            score_function="identity",
            class_function="softmax",
            has_token_vectors=self.embedding_size > 0,
        )
        return ServedModel(self.names, info, assets, 1, 8, MAX_STEP_LOGPROBS, 1700000000)

    async def start(self) -> None:
        self.started = True

    async def close(self) -> None:
        self.stopped = True

    def models(self) -> list[ServedModel]:
        return [self.model] if self.state in ("ready", "draining") else []

    async def settle(self, model: str = "", max_wait_s: float = math.inf) -> float:
        if self.state == "settling":
            self.state = "ready"
        return min(self.away_s, max_wait_s)

    def find_model(self, name: str) -> ServedModel:
        if self.state != "ready":
            raise EngineUnavailableError("ipc:///secret/socket is loading")
        if name and name not in self.names:
            error = InvalidRequestError(f"The model {name!r} does not exist", "model", "model_not_found")
            error.status = 404
            raise error
        return self.model

    async def open(
        self, model: str, requests: Sequence[GenerationRequest], on_ready: Callable[[], None]
    ) -> list[Generation]:
        return [self._open_one(model, request, on_ready) for request in requests]

    def _open_one(
        self, model: str, request: GenerationRequest, on_ready: Callable[[], None]
    ) -> FakeGeneration:
        self.seen.append(Seen(model, request))
        return FakeGeneration(
            request.sampling.n,
            self._deltas(request),
            on_ready,
            lambda: self._note_closed(request.request_id),
        )

    async def _deltas(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        if request.pools:
            # Number i is i times the first token.
            size = self.embedding_size or len(self.labels)
            pooled_ids = request.prompt_token_ids if request.pools_tokens else request.prompt_token_ids[:1]
            vector = [token_id * i for token_id in pooled_ids for i in range(size)]
            yield OutputDelta(0, finish_reason="length", pooled=pack_float32(vector))
        elif self.script is None:
            for delta in deltas_of(self.text, request):
                yield delta
        else:
            async with contextlib.aclosing(self.script(request)) as deltas:
                async for delta in deltas:
                    yield delta

    def _note_closed(self, request_id: str) -> None:
        self.closed.append(request_id)
        self.num_closed.set()

    def status(self) -> list[EngineStatus]:
        base = EngineStatus("ipc:///secret/socket", self.state, "engine-0")
        if self.state == "loading":
            return [replace(base, stage="weights", fraction=0.25)]
        return [
            replace(
                base,
                model=self.model,
                stats=self.stats_now,
                queue=self.queue_now,
                last_pong_age_s=0.1,
                stalled=self.stalled,
            )
        ]

    async def ping(self, timeout_s: float) -> list[EngineStatus]:
        if self.state != "ready" or not self.answers:
            raise EngineUnavailableError("no engine answered")
        return self.status()

    async def explain(self, request_ids: Sequence[str], tenant: str, timeout_s: float) -> list[Explanation]:
        if self.state != "ready":
            raise EngineUnavailableError("ipc:///secret/socket is loading")
        self.asked.append((list(request_ids), tenant))
        return [Explanation("ipc:///secret/socket", self.answers, self.open_requests if self.answers else [])]

    async def view(self, tenant: str, timeout_s: float) -> dict[str, EngineView]:
        if self.state != "ready" or not self.answers:
            return {}
        self.asked.append(([], tenant))
        return {"ipc:///secret/socket": self.engine_view} if self.engine_view else {}

    async def set_log_level(self, level: LogLevelName, timeout_s: float) -> dict[str, bool]:
        self.log_levels.append(level)
        return {"ipc:///secret/socket": self.answers}

    async def rest(self, level: int, timeout_s: float) -> None:
        self.sleep_levels.append(level)
        self.state = "asleep" if level else "ready"

    async def reset_prefix_cache(self, timeout_s: float) -> int:
        return 25

    def stats(self) -> PoolStats:
        return PoolStats(num_open=1, requests_aborted=2)

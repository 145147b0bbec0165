"""The events of a chat stream."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from splitserve.frontend.engines.connection.token_relay import Frame
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.openai.answers.chat_parts import chat_delta
from splitserve.frontend.openai.answers.choice_reader import ChoiceReaders
from splitserve.frontend.openai.answers.chunk_head import ChunkHead
from splitserve.frontend.openai.answers.logprobs import (
    ChatLogprobs,
    ChatTokenLogprob,
    chat_entries,
    prompt_maps,
    token_texts,
)
from splitserve.frontend.openai.generation_run import GenerationRun
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.run_events import Event
from splitserve.frontend.openai.schema.chat import AnswerMessage, ChatChunkChoice, ChatDelta, ChatRequest

_encode = msgspec.json.Encoder().encode


class ChatWriter:
    """The chunks of a chat stream; plain text goes between bytes prepared once per choice."""

    def __init__(
        self,
        plan: Plan[ChatRequest],
        run: GenerationRun,
        opened: AnswerMessage,
        readers: ChoiceReaders | None = None,
    ) -> None:
        """Prepare what stays the same.

        Args:
            plan: of the request.
            run: its run.
            opened: the message as it stands before the first token: its role, and the text that is echoed.
            readers: tell content, reasoning and tool calls apart; None if all text is content.
        """
        body, options = plan.body, plan.body.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._every_usage = self._include_usage and bool(options and options.continuous_usage_stats)
        self._head = ChunkHead(plan.head, "chat.completion.chunk", null_usage=self._include_usage)
        self._run = run
        self._tokenizer = plan.model.assets.tokenizer
        self._token_texts = token_texts(self._tokenizer, as_token_ids=body.return_tokens_as_token_ids)
        self._return_token_ids = bool(body.return_token_ids)
        self._prompt = plan.prompts[0]
        self._opened = opened
        self._readers = readers
        self._logprobs = bool(body.logprobs)
        self._num_logprobs = body.top_logprobs or 0
        self._num_prompt_logprobs = plan.params[0].prompt_logprobs or 0
        self._shows_tokens = self._logprobs or self._return_token_ids or self._every_usage
        self._plain = not self._shows_tokens and readers is None
        self._prefixes = [self._head.prefix + b'{"index":%d,"delta":{"content":' % i for i in range(run.n)]
        self._suffix = b'},"logprobs":null,"finish_reason":null}' + self._head.suffix

    def first_events(self) -> bytes:
        """Return the chunks that name the role, one per choice, and those of the echo."""
        extra = b""
        if self._return_token_ids:
            extra = b',"prompt_token_ids":' + _encode(self._prompt.token_ids)
        usage = self._run.usage.usage() if self._every_usage else None
        delta = ChatDelta(role=self._opened.role, content="")
        events = [
            self._head.event([ChatChunkChoice(index=i, delta=delta)], usage, extra if i == 0 else b"")
            for i in range(self._run.n)
        ]
        if self._opened.content:
            echo = ChatDelta(content=self._opened.content)
            events += [
                self._head.event([ChatChunkChoice(index=i, delta=echo)], usage) for i in range(self._run.n)
            ]
        return b"".join(events)

    def chunk(self, prompt_idx: int, delta: OutputDelta) -> Event:
        """Return the event of one delta; b"" if it shows nothing."""
        if self._plain and delta.finish_reason is None and delta.prompt_logprobs is None:
            return self._prefixes[delta.index] + _encode(delta.text) + self._suffix if delta.text else b""
        if self._readers is None:
            found, finish_reason = [ChatDelta(content=delta.text)] if delta.text else [], delta.finish_reason
        else:
            found = [chat_delta(each) for each in self._readers.read(delta)]
            finish_reason = self._readers.finish_reason(delta)
        shows_more = delta.prompt_logprobs is not None or (delta.token_ids and self._shows_tokens)
        if not found and finish_reason is None and not shows_more:
            return b""
        return self._events(delta, found or [ChatDelta()], finish_reason)

    def _events(self, delta: OutputDelta, parts: Sequence[ChatDelta], finish_reason: str | None) -> Event:
        """Return one event per part; the first tells of the tokens, the last of the end."""
        pieces, extra = JsonPieces(), b""
        if delta.prompt_logprobs is not None:
            maps = prompt_maps(pieces, self._tokenizer, delta.prompt_logprobs, self._num_prompt_logprobs)
            extra = b',"prompt_logprobs":' + _encode(maps)
        usage = self._run.usage.usage() if self._every_usage else None
        first, *more = parts
        choice = self._choice(pieces, delta, first, None if more else finish_reason)
        events = [self._head.event([choice], usage, extra)]
        for i, part in enumerate(more, start=1):
            reason = finish_reason if i == len(more) else None
            later = ChatChunkChoice(
                index=delta.index, delta=part, finish_reason=reason, stop_reason=_stop_reason(delta, reason)
            )
            events.append(self._head.event([later], usage))
        event = b"".join(events)
        return pieces.fill(event) if pieces.has_parts else event

    def frame(self) -> Frame | None:
        """Return what stands around plain text, if text is all that is asked for."""
        return Frame(self._prefixes[0], self._suffix) if self._plain else None

    def last_events(self) -> bytes:
        """Return the usage chunk if it was asked for; it tells the request's metrics too."""
        if not self._include_usage:
            return b""
        metrics = self._run.metrics()
        extra = b"" if metrics is None else b',"metrics":' + _encode(metrics)
        return self._head.event([], self._run.usage.usage(), extra)

    def _choice(
        self, pieces: JsonPieces, delta: OutputDelta, part: ChatDelta, finish_reason: str | None
    ) -> ChatChunkChoice:
        entries: list[ChatTokenLogprob] = []
        if self._logprobs:
            num_top, count = self._num_logprobs, len(delta.logprobs)
            entries = chat_entries(pieces, self._token_texts, delta.logprobs, count, num_top)
        return ChatChunkChoice(
            index=delta.index,
            delta=part,
            logprobs=ChatLogprobs(entries) if entries else None,
            finish_reason=finish_reason,
            stop_reason=_stop_reason(delta, finish_reason),
            token_ids=delta.token_ids if self._return_token_ids else msgspec.UNSET,
        )


def _stop_reason(delta: OutputDelta, finish_reason: str | None) -> str | int | msgspec.UnsetType | None:
    return msgspec.UNSET if finish_reason is None else delta.stop_reason

"""Text, logprobs and stream events of completion choices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from splitserve.frontend.engines.connection.token_relay import Frame
from splitserve.frontend.engines.generation import OutputDelta, TokenLogprob
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.slices import SLICE_VALUES
from splitserve.frontend.openai.answers.chunk_head import ChunkHead
from splitserve.frontend.openai.answers.logprobs import (
    clamp,
    completion_name,
    prompt_maps,
    token_texts,
    top_by_name,
    values_per_token,
    with_top,
)
from splitserve.frontend.openai.answers.text_offsets import TextOffsets, prompt_offsets
from splitserve.frontend.openai.generation_run import GenerationRun
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.run_events import Event
from splitserve.frontend.openai.schema.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from splitserve.frontend.text.prompts import Prompt
from splitserve.frontend.text.tokenizer import Tokenizer

# Characters of a text encoded in one slice; a surrogate pair is one character here.
_TEXT_SLICE = 64 * 1024

_encode = msgspec.json.Encoder().encode


class CompletionText:
    """What one choice shows: the echo of its prompt, then its output; keeps the text offset of logprobs.

    Attributes:
        prompt: the prompt it completes.
    """

    def __init__(self, body: CompletionRequest, tokenizer: Tokenizer, prompt: Prompt) -> None:
        self._tokenizer = tokenizer
        self._token_texts = token_texts(tokenizer, as_token_ids=body.return_tokens_as_token_ids)
        self.prompt = prompt
        self._echo = bool(body.echo)
        self._num_logprobs = body.logprobs
        self._skip_special_tokens = body.skip_special_tokens is not False
        self._offsets: TextOffsets | None = None

    def shown(self, pieces: JsonPieces, text: str) -> str:
        """Return the first text of the choice, behind the prompt if it is echoed."""
        if not self._echo or len(self.prompt.token_ids) <= SLICE_VALUES:
            return self._echoed_text() + text
        prompt = self.prompt.text
        return pieces.long_text(chain(self._decode() if prompt is None else _cut(prompt), _cut(text)))

    def _echoed_text(self) -> str:
        if not self._echo:
            return ""
        return "".join(self._decode()) if self.prompt.text is None else self.prompt.text

    def _decode(self) -> Iterator[str]:
        # A character that it leaves unfinished is at the beginning of the output.
        detokenizer, token_ids = self._tokenizer.detokenizer(skip_special_tokens=False), self.prompt.token_ids
        for first in range(0, len(token_ids), SLICE_VALUES):
            yield detokenizer.push(token_ids[first : first + SLICE_VALUES])

    def logprobs(
        self,
        pieces: JsonPieces,
        token_ids: list[int],
        logprobs: Iterable[Sequence[TokenLogprob]],
        prompt_logprobs: Sequence[TokenLogprob | None] | None,
    ) -> CompletionLogprobs | None:
        """Return the columns of new tokens, behind those of an echoed prompt; None if not asked for.

        Args:
            pieces: of the answer or event, made before those of the choice's next tokens are asked for.
            token_ids: the new tokens.
            logprobs: theirs, in parts.
            prompt_logprobs: of the prompt, in front of the choice's first tokens only.
        """
        num_top = self._num_logprobs
        if num_top is None:
            return None
        echoed = prompt_logprobs if self._echo and prompt_logprobs is not None else ()
        if echoed:
            token_ids = self.prompt.token_ids + token_ids

        def entries() -> Iterator[TokenLogprob | None]:
            # The field prompt_logprobs may have asked for more alternatives.
            return chain(with_top(echoed, num_top), *logprobs)

        count = len(token_ids)
        return CompletionLogprobs(
            pieces.long_list(self._names(token_ids), count),
            pieces.long_list((None if e is None else clamp(e.logprob) for e in entries()), count, 2),
            pieces.long_list(self._tops(entries()), count, values_per_token(num_top)),
            pieces.long_list(self._offsets_of(token_ids, len(echoed)), count),
        )

    def _names(self, token_ids: list[int]) -> Iterator[str]:
        return (completion_name(self._token_texts.token_text(token_id)) for token_id in token_ids)

    def _tops(self, entries: Iterator[TokenLogprob | None]) -> Iterator[dict[str, float] | None]:
        return (None if entry is None else top_by_name(self._token_texts, entry) for entry in entries)

    def _offsets_of(self, token_ids: list[int], num_echoed: int) -> Iterator[int]:
        if num_echoed:
            yield from prompt_offsets(self._tokenizer, token_ids[:num_echoed], self.prompt.text)
        for token_id in token_ids[num_echoed:]:
            yield self._next_offset(token_id)

    def _next_offset(self, token_id: int) -> int:
        if self._offsets is None:
            detokenizer = self._tokenizer.detokenizer(self._skip_special_tokens, self.prompt.token_ids)
            self._offsets = TextOffsets(detokenizer, len(self._echoed_text()))
        return self._offsets.take(token_id)


def _cut(text: str) -> Iterator[str]:
    return (text[first : first + _TEXT_SLICE] for first in range(0, len(text), _TEXT_SLICE))


class CompletionWriter:
    """The chunks of a completion stream; plain text goes between bytes prepared once per choice.

    An echo with logprobs begins every choice with those of the prompt. They come with the first delta of the
    prompt's first choice; deltas of its other choices are held until then.
    """

    def __init__(
        self, plan: Plan[CompletionRequest], run: GenerationRun, texts: list[CompletionText]
    ) -> None:
        body, options = plan.body, plan.body.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._every_usage = self._include_usage and bool(options and options.continuous_usage_stats)
        self._head = ChunkHead(plan.head, "text_completion", null_usage=self._include_usage)
        self._run = run
        self._tokenizer = plan.model.assets.tokenizer
        self._texts = texts
        self._return_token_ids = bool(body.return_token_ids)
        self._num_prompt_logprobs = body.prompt_logprobs
        self._echo = bool(body.echo)
        self._shows_tokens = body.logprobs is not None or self._return_token_ids or self._every_usage
        self._plain = not (self._shows_tokens or self._echo or body.prompt_logprobs is not None)
        self._scores_echo = self._echo and body.logprobs is not None
        self._echoed: list[Sequence[TokenLogprob | None] | None] = [None] * len(plan.prompts)
        self._held: list[list[OutputDelta]] = [[] for _ in plan.prompts]
        self._begun = [False] * len(texts)
        self._prefixes = [self._head.prefix + b'{"index":%d,"text":' % i for i in range(len(texts))]
        self._suffix = b',"logprobs":null,"finish_reason":null}' + self._head.suffix

    def first_events(self) -> bytes:
        """Return nothing: a completion begins with its first text."""
        return b""

    def chunk(self, prompt_idx: int, delta: OutputDelta) -> Event:
        """Return the event of one delta and of those held for it; b"" if it is held or shows nothing."""
        if self._plain and delta.finish_reason is None:
            prefix = self._prefixes[prompt_idx * self._run.n + delta.index]
            return prefix + _encode(delta.text) + self._suffix if delta.text else b""
        if not self._scores_echo:
            return self._event(prompt_idx, delta)
        if self._echoed[prompt_idx] is None:
            if delta.prompt_logprobs is None:
                self._held[prompt_idx].append(delta)
                return b""
            self._echoed[prompt_idx] = delta.prompt_logprobs
        held, self._held[prompt_idx] = self._held[prompt_idx], []
        return self._events(prompt_idx, [delta, *held]) if held else self._event(prompt_idx, delta)

    def _events(self, prompt_idx: int, deltas: list[OutputDelta]) -> Iterator[bytes]:
        for delta in deltas:
            event = self._event(prompt_idx, delta)
            if isinstance(event, bytes):
                yield event
            else:
                yield from event

    def _event(self, prompt_idx: int, delta: OutputDelta) -> Event:
        index = prompt_idx * self._run.n + delta.index
        first = not self._begun[index]
        pieces = JsonPieces()
        choice = self._choice(pieces, index, first, delta)
        shows = choice.text or choice.logprobs or choice.prompt_logprobs
        if delta.finish_reason is None and not (shows or (self._shows_tokens and delta.token_ids)):
            return b""
        self._begun[index] = True
        event = self._head.event([choice], self._run.usage.usage() if self._every_usage else None)
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

    def _choice(self, pieces: JsonPieces, index: int, first: bool, delta: OutputDelta) -> CompletionChoice:
        text = self._texts[index]
        echoed = self._echoed[index // self._run.n] if first else None
        return CompletionChoice(
            index=index,
            text=text.shown(pieces, delta.text) if first else delta.text,
            logprobs=(
                text.logprobs(pieces, delta.token_ids, [delta.logprobs], echoed)
                if delta.logprobs or echoed
                else None
            ),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if self._return_token_ids else msgspec.UNSET,
            prompt_token_ids=(
                pieces.ids(text.prompt.token_ids) if first and self._return_token_ids else msgspec.UNSET
            ),
            prompt_logprobs=(
                prompt_maps(pieces, self._tokenizer, delta.prompt_logprobs, self._num_prompt_logprobs)
                if self._num_prompt_logprobs is not None and delta.prompt_logprobs is not None
                else msgspec.UNSET
            ),
            routed_experts=msgspec.UNSET,
        )

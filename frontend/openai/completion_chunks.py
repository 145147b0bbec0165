"""Text, logprobs and stream events of one completion choice after another."""

from __future__ import annotations

import msgspec

from frontend.generation import OutputDelta, TokenLogprob
from frontend.openai.chunk_head import ChunkHead
from frontend.openai.completion_schema import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from frontend.openai.generation_run import GenerationRun, Plan
from frontend.openai.logprobs import (
    clamp,
    completion_name,
    prompt_maps,
    token_texts,
    top_by_name,
    with_top,
)
from frontend.openai.prompts import Prompt
from frontend.openai.text_offsets import TextOffsets, prompt_offsets
from frontend.token_relay import Frame
from frontend.tokenizer import Tokenizer

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

    def shown(self, text: str) -> str:
        """Return the first text of the choice, behind the prompt if it is echoed."""
        return self._echoed_text() + text

    def _echoed_text(self) -> str:
        if not self._echo:
            return ""
        if self.prompt.text is not None:
            return self.prompt.text
        # A character that it leaves unfinished is at the beginning of the output.
        return self._tokenizer.detokenizer(skip_special_tokens=False).push(self.prompt.token_ids)

    def logprobs(
        self, logprobs: list[TokenLogprob], prompt_logprobs: list[TokenLogprob | None] | None
    ) -> CompletionLogprobs | None:
        """Return the columns of new tokens, behind those of an echoed prompt; None if not asked for.

        Args:
            logprobs: of the new tokens.
            prompt_logprobs: of the prompt, in front of the choice's first tokens only.
        """
        if self._num_logprobs is None:
            return None
        found = CompletionLogprobs([], [], [], [])
        if self._echo and prompt_logprobs is not None:
            # The field prompt_logprobs may have asked for more alternatives.
            shown = with_top(prompt_logprobs, self._num_logprobs)
            token_ids = self.prompt.token_ids
            offsets = prompt_offsets(self._tokenizer, token_ids, self.prompt.text)
            for token_id, entry, offset in zip(token_ids, shown, offsets, strict=True):
                self._append(found, token_id, entry, offset)
        for logprob in logprobs:
            self._append(found, logprob.token_id, logprob, self._next_offset(logprob.token_id))
        return found

    def _next_offset(self, token_id: int) -> int:
        if self._offsets is None:
            detokenizer = self._tokenizer.detokenizer(self._skip_special_tokens, self.prompt.token_ids)
            self._offsets = TextOffsets(detokenizer, len(self._echoed_text()))
        return self._offsets.take(token_id)

    def _append(
        self, columns: CompletionLogprobs, token_id: int, entry: TokenLogprob | None, offset: int
    ) -> None:
        token = self._token_texts.token_text(token_id)
        columns.tokens.append(completion_name(token))
        columns.token_logprobs.append(None if entry is None else clamp(entry.logprob))
        columns.top_logprobs.append(None if entry is None else top_by_name(self._token_texts, entry))
        columns.text_offset.append(offset)


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
        self._echoed: list[list[TokenLogprob | None] | None] = [None] * len(plan.prompts)
        self._held: list[list[OutputDelta]] = [[] for _ in plan.prompts]
        self._begun = [False] * len(texts)
        self._prefixes = [self._head.prefix + b'{"index":%d,"text":' % i for i in range(len(texts))]
        self._suffix = b',"logprobs":null,"finish_reason":null}' + self._head.suffix

    def opening(self) -> bytes:
        """Return nothing: a completion begins with its first text."""
        return b""

    def chunk(self, prompt_idx: int, delta: OutputDelta) -> bytes:
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
        return b"".join(self._event(prompt_idx, each) for each in (delta, *held))

    def _event(self, prompt_idx: int, delta: OutputDelta) -> bytes:
        index = prompt_idx * self._run.n + delta.index
        first = not self._begun[index]
        choice = self._choice(index, first, delta)
        shows = choice.text or choice.logprobs or choice.prompt_logprobs
        if delta.finish_reason is None and not (shows or (self._shows_tokens and delta.token_ids)):
            return b""
        self._begun[index] = True
        return self._head.event([choice], self._run.usage.usage() if self._every_usage else None)

    def frame(self) -> Frame | None:
        """Return what stands around plain text, if text is all that is asked for."""
        return Frame(self._prefixes[0], self._suffix) if self._plain else None

    def closing(self) -> bytes:
        """Return the usage chunk if it was asked for; it tells the request's metrics too."""
        if not self._include_usage:
            return b""
        metrics = self._run.metrics()
        extra = b"" if metrics is None else b',"metrics":' + _encode(metrics)
        return self._head.event([], self._run.usage.usage(), extra)

    def _choice(self, index: int, first: bool, delta: OutputDelta) -> CompletionChoice:
        text = self._texts[index]
        echoed = self._echoed[index // self._run.n] if first else None
        return CompletionChoice(
            index=index,
            text=text.shown(delta.text) if first else delta.text,
            logprobs=text.logprobs(delta.logprobs, echoed) if delta.logprobs or echoed else None,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=delta.token_ids if self._return_token_ids else msgspec.UNSET,
            prompt_token_ids=text.prompt.token_ids if first and self._return_token_ids else msgspec.UNSET,
            prompt_logprobs=(
                prompt_maps(self._tokenizer, with_top(delta.prompt_logprobs, self._num_prompt_logprobs))
                if self._num_prompt_logprobs is not None and delta.prompt_logprobs is not None
                else msgspec.UNSET
            ),
            routed_experts=msgspec.UNSET,
        )

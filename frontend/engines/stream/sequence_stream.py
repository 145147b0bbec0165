"""Turns the tokens of one sequence into text deltas: detokenizing, stop strings, logprobs; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import Finished, FinishReason
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.open_sequence import OpenSequence, check_columns
from splitserve.frontend.engines.connection.token_relay import Relayed, Route
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.engines.stream.lazy_list import LazyList
from splitserve.frontend.engines.stream.logprobs import read_prompt_logprobs, read_token_logprob
from splitserve.frontend.text.detokenizer import Detokenizer
from splitserve.frontend.text.silent_detokenizer import SilentDetokenizer
from splitserve.frontend.text.stop_strings import StopMatcher
from splitserve.frontend.text.tokenizer import Tokenizer

# More tokens than any sequence has.
ALL_TOKENS = 2**31

_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.REPETITION: "repetition",
}


class SequenceStream:
    """Makes deltas from what has arrived for one sequence.

    Attributes:
        finished: whether the last delta has been made.
        stopped_here: whether a stop string ended it, so that the engine must abort it.
    """

    __slots__ = (
        "_asked_ids",
        "_detokenizer",
        "_index",
        "_sampling",
        "_stops",
        "_wants_logprobs",
        "_wants_prompt_logprobs",
        "finished",
        "source",
        "stopped_here",
    )

    def __init__(
        self,
        index: int,
        source: OpenSequence,
        sampling: SamplingParams,
        prompt_token_ids: Sequence[int],
        tokenizer: Tokenizer,
        kept_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Begin with nothing taken.

        Args:
            index: which of the n completions.
            source: of the tokens.
            sampling: of the request.
            prompt_token_ids: what the sequence goes on from.
            tokenizer: of the model.
            kept_ids: special tokens that are shown although special tokens are skipped.
        """
        self.finished = False
        self.stopped_here = False
        self.source = source
        self._index = index
        self._sampling = sampling
        self._wants_logprobs = sampling.logprobs is not None
        self._asked_ids = pack_int32(sampling.logprob_token_ids) if sampling.logprob_token_ids else b""
        self._wants_prompt_logprobs = sampling.prompt_logprobs is not None and index == 0
        self._detokenizer: Detokenizer = (
            tokenizer.detokenizer(sampling.skip_special_tokens, prompt_token_ids, kept_ids)
            if sampling.detokenize
            else SilentDetokenizer()
        )
        self._stops = (
            StopMatcher(sampling.stop, sampling.include_stop_str_in_output) if sampling.stop else None
        )

    @property
    def behind(self) -> bool:
        """Whether there are tokens that take() would return now."""
        return not self.finished and len(self.source.token_ids) > self.source.num_taken

    def take(self, max_tokens: int = ALL_TOKENS) -> OutputDelta | None:
        """Return what is new as one delta, None if nothing is.

        Args:
            max_tokens: most tokens to return, at least 1; the rest waits for the next call.

        Raises:
            SplitServeError: the sequence failed.
            ProtocolError: the engine sent logprobs that do not match the tokens.
        """
        source = self.source
        if source.error is not None:
            raise source.error
        if self.finished or (len(source.token_ids) == source.num_taken and source.finished is None):
            return None
        first = source.num_taken
        token_ids = source.token_ids[first : first + max_tokens].tolist()
        num_taken = source.num_taken = first + len(token_ids)
        finished = source.finished if num_taken == len(source.token_ids) else None
        delta = OutputDelta(
            self._index,
            token_ids=token_ids,
            num_cached_tokens=source.num_cached_tokens,
            queue_time_s=source.queue_time_s,
        )
        self._add_text(delta, first, finished)
        if self._wants_logprobs:
            self._add_logprobs(delta, first, num_taken - first)
        if self._wants_prompt_logprobs:
            self._wants_prompt_logprobs = False
            delta.prompt_logprobs = read_prompt_logprobs(source)
        self.finished = delta.finish_reason is not None
        if self.finished:
            delta.pooled = source.pooled
            # Of what was computed behind a stop string nothing is in the output.
            num_tokens = first + len(delta.token_ids)
            delta.num_draft_tokens, delta.num_accepted_draft_tokens = source.num_drafted(num_tokens)
            if source.finished is not None:
                delta.num_preemptions = source.finished.num_preemptions
        return delta

    def hand_over(self, route: Route) -> bool:
        """Let native code write what comes next, as plain-text events, until take_back().

        Returns:
            Whether this was possible. It is not if anything besides text is requested, if the text has only
            begun, or if the sequence has ended, is displaced, or is watched.
        """
        source = self.source
        asks_more = self._stops is not None or self._wants_logprobs or self._wants_prompt_logprobs
        state = self._detokenizer.state()
        if asks_more or state is None or source.has_ended or source.relay is None or source.watched:
            return False
        source.hand_over(route, state)
        return True

    def take_back(self) -> Relayed | None:
        """Continue in Python after hand_over(); return what was done, None if nothing was handed over."""
        self.source.recall()
        back, self.source.returned = self.source.returned, None
        if back is not None:
            self._detokenizer.resume(back.held)
        return back

    def _add_text(self, delta: OutputDelta, first: int, finished: Finished | None) -> None:
        visible = delta.token_ids if finished is None else self._visible(delta.token_ids, finished)
        if self._stops is None:
            delta.text = self._detokenizer.push(visible)
        elif self._match_stops(delta, visible, first, self._stops):
            return
        if finished is not None:
            self._finish(delta, finished)

    def _visible(self, token_ids: list[int], finished: Finished) -> list[int]:
        """Leave out the token that ended the sequence: EOS and stop tokens are not part of the text."""
        if finished.reason is FinishReason.STOP and not self._sampling.include_stop_str_in_output:
            return token_ids[:-1]
        return token_ids

    def _match_stops(self, delta: OutputDelta, visible: list[int], first: int, stops: StopMatcher) -> bool:
        """Add text token by token, so that we know which token completes a stop string."""
        texts: list[str] = []
        for offset, token_id in enumerate(visible):
            text = self._detokenizer.push((token_id,))
            if first + offset + 1 < self._sampling.min_tokens:
                texts.append(stops.pass_over(text))
                continue
            result = stops.push(text)
            texts.append(result.text)
            if result.matched is not None:
                delta.text = "".join(texts)
                del delta.token_ids[offset + 1 :]
                self._stop(delta, result.matched)
                return True
        delta.text = "".join(texts)
        return False

    def _stop(self, delta: OutputDelta, matched: str) -> None:
        delta.finish_reason, delta.stop_reason = "stop", matched
        self.stopped_here = self.source.finished is None

    def _finish(self, delta: OutputDelta, finished: Finished) -> None:
        rest = self._detokenizer.finish()
        if self._stops is not None:
            if self.source.num_taken < self._sampling.min_tokens:
                delta.text += self._stops.pass_over(rest)
                rest = ""
            result = self._stops.push(rest)
            delta.text += result.text
            if result.matched is not None:
                self._stop(delta, result.matched)
                return
            rest = self._stops.finish()
        delta.text += rest
        delta.finish_reason, delta.stop_reason = _REASONS[finished.reason], finished.stop_token_id

    def _add_logprobs(self, delta: OutputDelta, first: int, num_taken: int) -> None:
        entries = self.source.logprobs[: len(delta.token_ids)]
        del self.source.logprobs[:num_taken]
        if [entry.token_index for entry in entries] != list(range(first, first + len(delta.token_ids))):
            raise ProtocolError("the engine sent logprobs that do not fit its tokens")
        for entry in entries:
            check_columns(entry, self._asked_ids)
        asked_ids = self._sampling.logprob_token_ids
        read = partial(read_token_logprob, asked_ids=asked_ids) if asked_ids else read_token_logprob
        delta.logprobs = LazyList(entries, read)

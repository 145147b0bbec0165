"""One beam search on the engines: each step asks for the next token of every beam and its alternatives.

A step sends one one-token request per beam; its prompt is the client's prompt plus the beam's tokens. The
prefix cache holds their full blocks, so a step computes 1 to block_size tokens per beam; without the cache,
all of them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence

from splitserve.engine_core.errors import (
    EngineRequestError,
    InvalidRequestError,
    ProtocolError,
)
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.frontend.engines.beam.answer import make_deltas
from splitserve.frontend.engines.beam.search import Beam, BeamSearch, SearchRules
from splitserve.frontend.engines.connection.open_sequence import OpenSequence, SequenceHost
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta, TokenLogprob
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.stream.logprobs import read_token_logprob


def search_rules(request: GenerationRequest, served: ServedModel) -> SearchRules:
    """Return the rules of a request's search on a model.

    Raises:
        InvalidRequestError: the search needs more candidates than the vocabulary has or the engine returns.
    """
    sampling, info = request.sampling, served.info
    eos_ids = () if sampling.ignore_eos else info.eos_token_ids
    room = info.max_model_len - len(request.prompt_token_ids)
    rules = SearchRules(
        width=sampling.best_of or sampling.n,
        max_tokens=room if sampling.max_tokens is None else sampling.max_tokens,
        end_ids=frozenset(i for i in (*eos_ids, *sampling.stop_token_ids) if 0 <= i < info.vocab_size),
        min_tokens=sampling.min_tokens,
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
    )
    limit = min(served.max_logprobs, info.vocab_size)
    if rules.num_candidates > limit:
        raise InvalidRequestError(
            f"beam search: its width and the number of EOS and stop token ids must come to at most {limit} "
            f"together, got {rules.num_candidates}",
            "stop_token_ids",
        )
    return rules


class BeamRun:
    """The search of one request; used once."""

    def __init__(
        self,
        request: GenerationRequest,
        served: ServedModel,
        host: SequenceHost,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            request: already checked against the model.
            served: the model.
            host: takes the steps.
            clock: returns seconds; used for the request's timeout.

        Raises:
            InvalidRequestError: as search_rules().
        """
        self._request = request
        self._served = served
        self._host = host
        self._clock = clock
        self._deadline_s = math.inf
        self._rules = search_rules(request, served)
        self._search = BeamSearch(self._rules)
        # Packed once: it may be long, and every beam of every step starts with it.
        self._prompt = pack_int32(request.prompt_token_ids)
        self._first: OpenSequence | None = None

    async def run(self) -> list[OutputDelta]:
        """Run the whole search; cancelling it aborts the step in flight.

        Returns:
            One delta for each of the n best outputs, best first, holding the whole output.

        Raises:
            SplitServeError: the error of a step, as EnginePool.generate() raises it.
        """
        timeout_s = self._request.timeout_s
        self._deadline_s = self._clock() + timeout_s if timeout_s else math.inf
        while not self._search.done:
            sources = await self._step(self._search.beams)
            self._first = self._first or sources[0]
            self._search.advance([self._candidates(source) for source in sources])
        assert self._first is not None, "a search has at least one step"
        return make_deltas(self._request, self._served, self._rules, self._search.found, self._first)

    def _left_s(self) -> float:
        """Return the timeout of the next step in seconds, 0 for none.

        Raises:
            EngineRequestError: the search has timed out.
        """
        left_s = self._deadline_s - self._clock()
        if left_s <= 0:
            error = EngineRequestError(f"the beam search did not finish within {self._request.timeout_s:g} s")
            error.code, error.status = "timeout", 504
            raise error
        return left_s if self._request.timeout_s else 0.0

    async def _step(self, beams: Sequence[Beam]) -> list[OpenSequence]:
        """Run one step and return its finished requests, one per beam."""
        host, changed, timeout_s = self._host, asyncio.Event(), self._left_s()
        sampling = self._step_sampling(is_first=self._first is None)
        requests = [self._add_request(i, beam, sampling, timeout_s) for i, beam in enumerate(beams)]
        sources = host.open(requests, changed.set)
        try:
            while not all(_has_ended(source) for source in sources):
                await changed.wait()
                changed.clear()
        finally:
            host.abort(sources)
        return sources

    def _add_request(
        self, index: int, beam: Beam, sampling: SequenceSampling, timeout_s: float
    ) -> AddRequest:
        request, adapter = self._request, self._served.adapter
        return AddRequest(
            handle=0,  # The host gives it one.
            request_id=f"{request.request_id}-{index}"[:128],
            prompt_token_ids=self._prompt + pack_int32([token.token_id for token in beam.tokens]),
            sampling=sampling,
            priority=request.priority,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
            timeout_s=timeout_s,
            queue_timeout_s=request.queue_timeout_s,
            continues=self._first is not None,
            adapter="" if adapter is None else adapter.name,
            adapter_digest="" if adapter is None else adapter.digest,
        )

    def _step_sampling(self, *, is_first: bool) -> SequenceSampling:
        sampling, wanted = self._request.sampling, self._rules.num_candidates
        return SequenceSampling(
            temperature=0.0,
            seed=0,
            max_tokens=1,
            ignore_eos=True,
            logprobs=min(self._served.info.vocab_size, max(wanted, sampling.logprobs or 0)),
            logprob_token_ids=sampling.logprob_token_ids,
            prompt_logprobs=sampling.prompt_logprobs if is_first else None,
        )

    def _candidates(self, source: OpenSequence) -> list[TokenLogprob]:
        sampling = self._request.sampling
        if len(source.logprobs) != 1:
            raise ProtocolError(f"the engine sent logprobs of {len(source.logprobs)} tokens instead of one")
        entry = read_token_logprob(source.logprobs[0], sampling.logprob_token_ids)
        shown = entry.top[: sampling.logprobs or 0]
        return [
            TokenLogprob(token_id, logprob, rank, shown, entry.asked)
            for rank, (token_id, logprob) in enumerate(entry.top, start=1)
        ]


def _has_ended(source: OpenSequence) -> bool:
    """Return whether a request has produced its token.

    Raises:
        SplitServeError: it failed.
    """
    if source.error is not None:
        raise source.error
    return source.finished is not None

"""Opens the prompts of one request: which engine runs each, and is it sampled or a beam search?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.frontend.engines.beam.driver import BeamRun
from splitserve.frontend.engines.beam.search_generation import SearchGeneration
from splitserve.frontend.engines.connection.open_sequence import OpenSequence, SequenceHost
from splitserve.frontend.engines.failover.owner import Failover
from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.engines.replica import EngineReplica
from splitserve.frontend.engines.request_check import check_num_sequences
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.spreading import spread
from splitserve.frontend.engines.status import PoolStats
from splitserve.frontend.engines.stream.engine_generation import EngineGeneration, Generation
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from splitserve.frontend.engines.stream.split_request import split_request


class Target(NamedTuple):
    """An engine that accepts requests, and the model it serves now."""

    replica: EngineReplica
    model: ServedModel


class Dispatcher:
    """Opens requests on the engines of a pool."""

    def __init__(
        self, find_targets: Callable[[str], list[Target]], failover: Failover, stats: PoolStats
    ) -> None:
        """Create a dispatcher.

        Args:
            find_targets: returns the engines that accept requests for a model, at least one, or raises.
            failover: owns the requests.
            stats: the pool's counters; every generation counts itself.
        """
        self._find_targets = find_targets
        self._failover = failover
        self._stats = stats

    def open(
        self, model: str, requests: Sequence[GenerationRequest], on_ready: Callable[[], None]
    ) -> list[Generation]:
        """Spread prompts over the engines of a model and open them there, all of them or none.

        Args:
            model: any of its names.
            requests: bad words already spelt as token ids; either all are beam searches or none is.
            on_ready: as for EnginePool.open().

        Raises:
            SplitServeError: as EnginePool.open().
        """
        targets = _serving(requests[0].model, self._find_targets(model))
        num_open = [target.replica.num_open for target in targets]
        parts = spread(num_open, [request.sampling.n for request in requests])
        generations: dict[int, Generation] = {}
        try:
            for target, part in zip(targets, parts, strict=True):
                opened = self._open_on(target, [requests[i] for i in part], on_ready)
                generations |= zip(part, opened, strict=True)
        except BaseException:
            for generation in generations.values():
                generation.close()
            raise
        return [generations[i] for i in range(len(requests))]

    def _open_on(
        self, target: Target, requests: Sequence[GenerationRequest], on_ready: Callable[[], None]
    ) -> list[Generation]:
        """Send one engine its share, which it accepts or rejects as a whole unless it is beam searches."""
        model = target.model
        for request in requests:
            check_num_sequences(1, request.sampling, model.max_num_open)
        if any(request.sampling.use_beam_search for request in requests):
            runs = [BeamRun(request, model, self._begin(target)) for request in requests]
            return [SearchGeneration(run.run(), on_ready, self._stats) for run in runs]
        host = self._begin(target)
        messages = [split_request(request, model.adapter) for request in requests]
        sources = iter(host.open(list(chain.from_iterable(messages)), on_ready))
        streams = [_streams(request, model, islice(sources, request.sampling.n)) for request in requests]
        return [EngineGeneration(host, each, self._stats) for each in streams]

    def _begin(self, target: Target) -> SequenceHost:
        return self._failover.begin(target.model.identity, target.replica)


def _serving(identity: str, targets: list[Target]) -> list[Target]:
    """Return the engines whose model can read the tokens of a prompt, at least one.

    Raises:
        EngineUnavailableError: none is left; asked again, the request is prepared for what they have now.
    """
    found = [target for target in targets if identity in ("", target.model.identity)]
    if not found:
        raise EngineUnavailableError("the model was replaced while the request was prepared for it")
    return found


def _streams(
    request: GenerationRequest, model: ServedModel, sources: Iterable[OpenSequence]
) -> list[SequenceStream]:
    prompt, tokenizer = request.prompt_token_ids, model.assets.tokenizer
    return [
        SequenceStream(index, source, request.sampling, prompt, tokenizer, request.kept_ids)
        for index, source in enumerate(sources)
    ]

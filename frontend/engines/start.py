"""How the prompts of one request get going on one engine: sampled, or searched with beams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice

from splitserve.frontend.beam.driver import BeamRun
from splitserve.frontend.beam.search_generation import SearchGeneration
from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.engines.request_check import check_request
from splitserve.frontend.engines.status import PoolStats, ServedModel
from splitserve.frontend.engines.stream.engine_generation import EngineGeneration, Generation
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from splitserve.frontend.engines.stream.split_request import split_request


def open_on(
    client: EngineClient,
    served: ServedModel,
    requests: Sequence[GenerationRequest],
    on_ready: Callable[[], None],
    choose: Callable[[], EngineClient],
    stats: PoolStats,
) -> list[Generation]:
    """Check and send prompts; the engine takes or refuses them together, but for beam searches.

    Args:
        client: the engine's.
        served: the model.
        requests: all of them search, or none does.
        on_ready: told of what comes, as by EnginePool.open().
        choose: returns the engine for the next step of a search.
        stats: of the pool.

    Raises:
        SplitServeError: as EnginePool.open(); nothing has been sent.
    """
    for request in requests:
        check_request(request, served)
    if any(request.sampling.use_beam_search for request in requests):
        runs = [BeamRun(request, served, choose) for request in requests]
        return [SearchGeneration(run.run(), on_ready, stats) for run in runs]
    messages = [split_request(request) for request in requests]
    sources = iter(client.open(list(chain.from_iterable(messages)), on_ready))
    return [
        EngineGeneration(client, _streams(request, served, islice(sources, request.sampling.n)), stats)
        for request in requests
    ]


def _streams(
    request: GenerationRequest, served: ServedModel, sources: Iterable[OpenSequence]
) -> list[SequenceStream]:
    prompt, tokenizer = request.prompt_token_ids, served.assets.tokenizer
    return [
        SequenceStream(index, source, request.sampling, prompt, tokenizer)
        for index, source in enumerate(sources)
    ]

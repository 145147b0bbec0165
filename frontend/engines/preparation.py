"""What a request asks in words, in tokens: bad words, and the grammar of its output."""

from __future__ import annotations

from dataclasses import replace

from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.text.bad_words import spell_bad_words
from splitserve.frontend.text.grammar.checker import GrammarChecker, has_grammar
from splitserve.frontend.text.model_assets import ModelAssets


def needs_preparation(request: GenerationRequest) -> bool:
    """Tell whether prepare() would change or check anything."""
    sampling = request.sampling
    has_calls = request.grammar_context.calls is not None
    return bool(sampling.bad_words) or has_grammar(sampling) or has_calls


class Preparation:
    """Prepares requests before they are sent; belongs to the pool's event loop."""

    def __init__(self) -> None:
        """Start nothing."""
        self._grammars = GrammarChecker()

    async def prepare(self, request: GenerationRequest, assets: ModelAssets) -> GenerationRequest:
        """Return the request as engines understand it.

        Raises:
            InvalidRequestError: a bad word or the grammar is wrong.
            OverloadedError: too many grammars wait to be checked.
            EngineUnavailableError: no process can check grammars.
        """
        sampling = await self._grammars.resolve(request.sampling, request.grammar_context, assets)
        if sampling.bad_words:
            sampling = await spell_bad_words(sampling, assets.tokenizer)
        return replace(request, sampling=sampling)

    def close(self) -> None:
        """End the process that checks grammars."""
        self._grammars.close()

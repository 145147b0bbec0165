"""The result of a beam search: its best outputs as deltas, one per completion."""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.frontend.engines.beam.search import Hypothesis, SearchRules
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.stream.logprobs import read_prompt_logprobs


def make_deltas(
    request: GenerationRequest,
    served: ServedModel,
    rules: SearchRules,
    found: Sequence[Hypothesis],
    first: OpenSequence,
) -> list[OutputDelta]:
    """Return one delta for each of the n best outputs, holding the whole output.

    Args:
        request: the request.
        served: the model.
        rules: the rules of the search.
        found: the outputs found, best first; at least n.
        first: the search's first request, whose prompt is the client's alone.
    """
    sampling = request.sampling
    deltas = [_delta(index, request, served, rules, found[index]) for index in range(sampling.n)]
    for delta in deltas:
        delta.num_cached_tokens, delta.queue_time_s = first.num_cached_tokens, first.queue_time_s
    if sampling.prompt_logprobs is not None:
        deltas[0].prompt_logprobs = read_prompt_logprobs(first)
    return deltas


def _delta(
    index: int, request: GenerationRequest, served: ServedModel, rules: SearchRules, found: Hypothesis
) -> OutputDelta:
    sampling = request.sampling
    token_ids = [token.token_id for token in found.beam.tokens]
    delta = OutputDelta(index, token_ids=token_ids, finish_reason="length")
    visible = token_ids
    if token_ids[-1] in rules.end_ids:
        delta.finish_reason = "stop"
        delta.stop_reason = _stop_token(request, served, token_ids[-1])
        visible = token_ids if sampling.include_stop_str_in_output else token_ids[:-1]
    if sampling.detokenize:
        tokenizer = served.assets.tokenizer
        detokenizer = tokenizer.detokenizer(
            sampling.skip_special_tokens, request.prompt_token_ids, request.kept_ids
        )
        delta.text = detokenizer.push(visible) + detokenizer.finish()
    if sampling.logprobs is not None:
        delta.logprobs = list(found.beam.tokens)
    return delta


def _stop_token(request: GenerationRequest, served: ServedModel, token_id: int) -> int | None:
    """Return the stop token that matched; as on the engine, EOS takes precedence if it has that id."""
    is_eos = not request.sampling.ignore_eos and token_id in served.info.eos_token_ids
    return None if is_eos else token_id

"""A checked request, ready to run: what to ask of the engines, and what the response needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.time_limits import left_after
from splitserve.frontend.openai.answers.choice_reader import AnswerReading
from splitserve.frontend.openai.context import ResponseHead
from splitserve.frontend.openai.other_names import Names
from splitserve.frontend.openai.schema.fields import GenerationFields
from splitserve.frontend.openai.schema.structured import output_rule
from splitserve.frontend.openai.timeouts import read_timeouts
from splitserve.frontend.text.call_grammar.demand import CallDemand
from splitserve.frontend.text.grammar.checker import has_grammar
from splitserve.frontend.text.grammar.context import NO_CONTEXT, GrammarContext, reasoning_of
from splitserve.frontend.text.prompts import Prompt

BodyT = TypeVar("BodyT", bound=GenerationFields)

# What a choice costs without logprobs, in values.
_VALUES_PER_CHOICE = 8


@dataclass(slots=True, frozen=True)
class Plan(Generic[BodyT]):
    """A checked request, ready to run.

    Attributes:
        params: one per prompt; n is the same in all.
        num_values: the most that its answer may hold beside text (see frontend.openai.answers.answer_size).
        waited_s: seconds for which it has waited for an engine that was away.
        reading: how its answers are taken apart; None if all their text is content.
        calls: of tools that its outputs are held to; None to leave them free.
        names: of the body's fields in the API that the client speaks, for errors.
        predicted: tokens that the client expects in the answer.
    """

    body: BodyT
    head: ResponseHead
    model: ServedModel
    prompts: list[Prompt]
    params: list[SamplingParams]
    num_values: int
    waited_s: float = 0.0
    reading: AnswerReading | None = None
    calls: CallDemand | None = None
    names: Names = ()
    predicted: Sequence[int] = ()

    @property
    def grammar_context(self) -> GrammarContext:
        """What is known of the grammar of the outputs beside itself."""
        field = output_rule(self.body.response_format, self.body.structured_outputs).field
        if self.params[0].structured_outputs is None and self.calls is not None:
            field = "tools"
        rules = self.reading.rules if self.reading is not None else None
        tags = rules.formats.reasoning if rules is not None and not rules.in_content else None
        if rules is None or tags is None:
            return GrammarContext(field, None, self.calls)
        return GrammarContext(field, reasoning_of(tags, is_open=rules.in_reasoning), self.calls)

    @property
    def n(self) -> int:
        """Completions per prompt."""
        return self.params[0].n

    @property
    def values_per_choice(self) -> int:
        """What a choice of the answer holds on average, in values."""
        return _VALUES_PER_CHOICE + self.num_values // (len(self.prompts) * self.n)


def generation_requests(plan: Plan[BodyT], tenant: str, *, streams: bool) -> list[GenerationRequest]:
    """Return what the engines are asked for each prompt.

    Args:
        plan: of the HTTP request.
        tenant: it belongs to.
        streams: tokens are wanted one by one.

    Raises:
        EngineRequestError, QueueTimeoutError: nothing is left of a timeout.
    """
    request_id, body = plan.head.id, plan.body
    timeout_s, queue_timeout_s = read_timeouts(body)
    # Most requests have none, and pay nothing for it.
    has_any = plan.calls is not None or has_grammar(plan.params[0])
    context = plan.grammar_context if has_any else NO_CONTEXT
    requests = [
        GenerationRequest(
            request_id=request_id if len(plan.prompts) == 1 else f"{request_id}-{i}",
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            priority=body.priority or 0,
            tenant=tenant,
            cache_salt=body.cache_salt or "",
            timeout_s=timeout_s,
            queue_timeout_s=queue_timeout_s,
            streams=streams,
            model=plan.model.identity,
            kept_ids=plan.reading.kept_ids if plan.reading is not None else frozenset(),
            grammar_context=context,
            predicted_token_ids=plan.predicted,
        )
        for i, (prompt, sampling) in enumerate(zip(plan.prompts, plan.params, strict=True))
    ]
    return [left_after(plan.waited_s, request) for request in requests]

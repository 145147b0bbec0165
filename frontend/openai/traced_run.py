"""What the trace of a request says of its generation, in the words of the GenAI semantic conventions."""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.metrics.generation_timer import GenerationTimer
from splitserve.frontend.observability.request_trace import (
    MAX_SEQUENCES,
    AttributeValue,
    GenerationTrace,
    RequestTrace,
    SequenceTrace,
)
from splitserve.frontend.openai.answers.usage import Usage
from splitserve.frontend.openai.plan import BodyT, Plan
from splitserve.frontend.openai.schema.chat import ChatRequest


class TracedRun:
    """Collects the ends of a traced request's sequences."""

    def __init__(self, trace: RequestTrace, plan: Plan[BodyT]) -> None:
        self._trace = trace
        self._ends: dict[int, OutputDelta] = {}
        self._operation = "chat" if isinstance(plan.body, ChatRequest) else "text_completion"
        self._model = plan.head.model
        self._attributes = {"gen_ai.operation.name": self._operation} | _attributes(plan)

    def failed(self, code: str) -> None:
        """Note the code of an error that ends the request."""
        self._trace.error = code

    def ended(self, choice_idx: int, delta: OutputDelta) -> None:
        """Note the last delta of a sequence."""
        self._ends[choice_idx] = delta

    def close(self, timers: Sequence[GenerationTimer], usage: Usage) -> None:
        """Say how it went.

        Args:
            timers: of all sequences, in order.
            usage: of the request.
        """
        reasons = [end.finish_reason or "" for _, end in sorted(self._ends.items())]
        self._attributes |= {
            "gen_ai.response.finish_reasons": reasons,
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.prompt_tokens_details.cached_tokens,
        }
        firsts = [times.first_token_s - times.arrived_s for t in timers if (times := t.times()).num_tokens]
        if firsts:
            self._attributes["gen_ai.response.time_to_first_chunk"] = min(firsts)
        sequences = [self._sequence(i, timer) for i, timer in enumerate(timers[:MAX_SEQUENCES])]
        self._trace.generation = GenerationTrace(self._operation, self._model, self._attributes, sequences)

    def _sequence(self, choice_idx: int, timer: GenerationTimer) -> SequenceTrace:
        times, end = timer.times(), self._ends.get(choice_idx)
        return SequenceTrace(
            arrived_s=times.arrived_s,
            queue_time_s=times.queue_time_s,
            first_token_s=times.first_token_s,
            last_token_s=times.last_token_s,
            num_tokens=times.num_tokens,
            finish_reason=end.finish_reason or "" if end is not None else "",
            num_preemptions=end.num_preemptions if end is not None else None,
        )


def _attributes(plan: Plan[BodyT]) -> dict[str, AttributeValue]:
    sampling = plan.params[0]
    found: dict[str, AttributeValue | None] = {
        "gen_ai.provider.name": "splitserve",
        "gen_ai.request.model": plan.head.model,
        "gen_ai.response.model": plan.model.names[0],
        "gen_ai.response.id": plan.head.id,
        "gen_ai.request.stream": bool(plan.body.stream),
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.choice.count": len(plan.prompts) * sampling.n,
    }
    return {name: value for name, value in found.items() if value is not None}

"""The response object of one request at any time: the echo of the request, its output, usage and end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from splitserve.frontend.engines.generation import TokenLogprob
from splitserve.frontend.http.dialect import ErrorDetail
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.openai.answers.logprobs import (
    ChatTokenLogprob,
    chat_entries,
    token_texts,
)
from splitserve.frontend.openai.generation_run import GenerationRun
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.responses.output import Item, Output
from splitserve.frontend.responses.schema.items import (
    ItemStatus,
    ReasoningOptions,
    TextFormat,
    TextOptions,
)
from splitserve.frontend.responses.schema.request import ResponsesRequest
from splitserve.frontend.responses.schema.response import (
    ErrorCode,
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputMessage,
    OutputPart,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningTextPart,
    ResponseError,
    ResponseObject,
    ResponseStatus,
    ResponseUsage,
)

_GIVEN_UP = ErrorDetail("the engine ended the request", "server_error", None, None)
# Type of an error -> what the API calls it.
_CODES: dict[str, ErrorCode] = {
    "invalid_request_error": "invalid_prompt",
    "rate_limit_error": "rate_limit_exceeded",
}
_STATUSES: dict[str | None, ResponseStatus] = {None: "in_progress", "length": "incomplete", "abort": "failed"}


class Snapshot:
    """Makes the response object, and the parts of it that events carry.

    Attributes:
        is_kept: what it says of itself.
    """

    def __init__(
        self,
        body: ResponsesRequest,
        plan: Plan[ChatRequest],
        run: GenerationRun,
        output: Output,
        *,
        is_kept: bool = False,
    ) -> None:
        """Prepare.

        Args:
            body: of the request.
            plan: made of it.
            run: of the plan.
            output: of the run.
            is_kept: whether it will be.
        """
        self.is_kept = is_kept
        self._body = body
        self._plan = plan
        self._run = run
        self._output = output
        self._num_top = plan.params[0].logprobs
        self._token_texts = token_texts(
            plan.model.assets.tokenizer, as_token_ids=plan.body.return_tokens_as_token_ids
        )

    @property
    def status(self) -> ResponseStatus:
        """How the run has ended."""
        return _STATUSES.get(self._output.finish_reason, "completed")

    def begun(self, status: ResponseStatus = "in_progress") -> ResponseObject:
        """Return the response before there is any output."""
        return self._response(status, [])

    def ended(self, pieces: JsonPieces) -> ResponseObject:
        """Return the response of a run that has ended."""
        reason = self._output.finish_reason
        items = [self.item(item, pieces) for item in self._output.items]
        error = response_error(_GIVEN_UP) if reason == "abort" else None
        return self._response(self.status, items, error)

    def failed(self, detail: ErrorDetail, *, with_output: bool = True) -> ResponseObject:
        """Return the response that an error ended, as far as it came, without logprobs, or without output."""
        items = [self.item(item, None) for item in self._output.items] if with_output else []
        return self._response("failed", items, response_error(detail))

    def item(self, item: Item, pieces: JsonPieces | None, *, with_text: bool = True) -> OutputItem:
        """Return an item as it stands now.

        Args:
            item: of the output.
            pieces: of what is sent; None for an item without logprobs.
            with_text: False for an item that only begins.
        """
        status: ItemStatus = "in_progress"
        if with_text:
            # What an error ended has no other end.
            status = "incomplete" if item.status == "in_progress" else item.status
        text = item.text if with_text else ""
        if item.kind == "function_call":
            return FunctionCallItem(
                id=item.id, call_id=item.call_id, name=item.name, arguments=text, status=status
            )
        if item.kind == "reasoning":
            thoughts = [ReasoningTextPart(text=text)] if with_text else []
            return ReasoningItem(id=item.id, status=status, content=thoughts)
        content = [self._output_text(item, pieces)] if with_text else []
        return OutputMessage(id=item.id, status=status, content=content)

    def part(self, item: Item, pieces: JsonPieces, *, with_text: bool = True) -> OutputPart:
        """Return the only part of a message or of reasoning: as it stands now, or without text."""
        if item.kind == "reasoning":
            return ReasoningTextPart(text=item.text if with_text else "")
        return self._output_text(item, pieces) if with_text else OutputText(text="")

    def _output_text(self, item: Item, pieces: JsonPieces | None) -> OutputText:
        logprobs = [] if pieces is None else self.logprobs(item.logprobs, pieces)
        return OutputText(text=item.text, logprobs=logprobs)

    def logprobs(self, entries: Sequence[TokenLogprob], pieces: JsonPieces) -> list[ChatTokenLogprob]:
        """Return logprobs as the API has them."""
        return chat_entries(pieces, self._token_texts, entries, len(entries), self._num_top or 0)

    def _response(
        self, status: ResponseStatus, items: list[OutputItem], error: ResponseError | None = None
    ) -> ResponseObject:
        body, head, params = self._body, self._plan.head, self._plan.params[0]
        text = body.text or TextOptions()
        return ResponseObject(
            id=head.id,
            created_at=head.created,
            completed_at=int(time.time()) if status == "completed" else None,
            model=head.model,
            status=status,
            output=items,
            error=error,
            incomplete_details=IncompleteDetails("max_output_tokens") if status == "incomplete" else None,
            usage=None if status in ("queued", "in_progress") else response_usage(self._run),
            previous_response_id=body.previous_response_id,
            background=bool(body.background),
            store=self.is_kept,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            temperature=params.temperature,
            top_p=params.top_p,
            top_logprobs=body.top_logprobs or 0,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            text=TextOptions(
                format=text.format or TextFormat(type="text"), verbosity=text.verbosity or "medium"
            ),
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=body.reasoning or ReasoningOptions(),
            truncation=body.truncation or "disabled",
            metadata=body.metadata or {},
            user=body.user,
            safety_identifier=body.safety_identifier,
            prompt_cache_key=body.prompt_cache_key,
        )


def response_usage(run: GenerationRun) -> ResponseUsage:
    """Return the token counts of a run as a response has them."""
    usage = run.usage.usage()
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=run.usage.reasoning_tokens or 0),
        total_tokens=usage.total_tokens,
    )


def response_error(detail: ErrorDetail) -> ResponseError:
    """Return an error as a response has it."""
    code: ErrorCode = _CODES.get(detail.type, "server_error")
    return ResponseError(code=code, message=detail.message, param=detail.param, type=detail.type)

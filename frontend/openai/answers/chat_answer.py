"""The whole answer of a chat request without `stream`."""

from __future__ import annotations

from itertools import chain

from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.openai.answers.chat_parts import MessageParts
from splitserve.frontend.openai.answers.choice_reader import ChoiceReaders
from splitserve.frontend.openai.answers.logprobs import ChatLogprobs, chat_entries, prompt_maps, token_texts
from splitserve.frontend.openai.generation_run import CollectedChoice, GenerationRun
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.schema.chat import AnswerMessage, ChatChoice, ChatRequest, ChatResponse


class ChatAnswer:
    """One answer: told the deltas as they come if they are to be read, and written at the end."""

    def __init__(
        self, plan: Plan[ChatRequest], opened: AnswerMessage, readers: ChoiceReaders | None = None
    ) -> None:
        """Prepare.

        Args:
            plan: of the request.
            opened: the message as it stands before the first token: its role, and the text that is echoed.
            readers: tell content, reasoning and tool calls apart; None if all text is content.
        """
        self._plan = plan
        self._opened = opened
        self._readers = readers
        self._messages = [MessageParts() for _ in range(plan.n)] if readers is not None else []
        self._reasons: dict[int, str | None] = {}
        texts = plan.model.assets.tokenizer
        self._token_texts = token_texts(texts, as_token_ids=plan.body.return_tokens_as_token_ids)

    def add(self, delta: OutputDelta) -> None:
        """Take what is new of one choice."""
        if self._readers is not None:
            self._messages[delta.index].add(self._readers.read(delta))
            self._reasons[delta.index] = self._readers.finish_reason(delta)

    def response(
        self, pieces: JsonPieces, run: GenerationRun, choices: list[CollectedChoice]
    ) -> ChatResponse:
        """Return the response of a run that has ended, with its choices."""
        plan, head = self._plan, self._plan.head
        prompt_logprobs, num_top = choices[0].prompt_logprobs, plan.params[0].prompt_logprobs or 0
        tokenizer = plan.model.assets.tokenizer
        return ChatResponse(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=pieces.long_list(
                (self._choice(pieces, i, choice) for i, choice in enumerate(choices)),
                len(choices),
                plan.values_per_choice,
            ),
            usage=run.usage.usage(),
            metrics=run.metrics(),
            prompt_token_ids=pieces.ids(plan.prompts[0].token_ids) if plan.body.return_token_ids else None,
            prompt_logprobs=(
                None if prompt_logprobs is None else prompt_maps(pieces, tokenizer, prompt_logprobs, num_top)
            ),
        )

    def _choice(self, pieces: JsonPieces, index: int, choice: CollectedChoice) -> ChatChoice:
        num_top, count = self._plan.params[0].logprobs, len(choice.token_ids)
        logprobs = None
        if num_top is not None:
            entries = chain.from_iterable(choice.logprobs)
            logprobs = ChatLogprobs(chat_entries(pieces, self._token_texts, entries, count, num_top))
        return ChatChoice(
            index=index,
            message=self._message(index, choice),
            logprobs=logprobs,
            finish_reason=self._reasons.get(index, choice.finish_reason),
            stop_reason=choice.stop_reason,
            token_ids=pieces.ids(choice.token_ids) if self._plan.body.return_token_ids else None,
        )

    def _message(self, index: int, choice: CollectedChoice) -> AnswerMessage:
        opened = self._opened
        if self._readers is not None:
            return self._messages[index].message(opened)
        return AnswerMessage(role=opened.role, content=(opened.content or "") + "".join(choice.texts))

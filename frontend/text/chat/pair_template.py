"""A query and a document as one prompt, by a chat template with the roles `query` and `document`.

A message of role `system` before them is the instruction, where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.engine_core.errors import ContextLengthError
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.chat.template import ChatTemplate
from splitserve.frontend.text.truncation import Truncation

_ROLES = ("query", "document")
# Two documents that share no token.
_SAMPLES = ("a", "b")


def takes_pairs(source: str) -> bool:
    """Whether a template's source looks for the roles."""
    return all(f"'{role}'" in source or f'"{role}"' in source for role in _ROLES)


class PairTemplate:
    """Makes prompts of pairs."""

    def __init__(self, template: ChatTemplate) -> None:
        """Args: template takes the roles."""
        self._template = template

    async def encode(
        self,
        query: str,
        document: str,
        instruction: str | None,
        truncation: Truncation | None,
        max_model_len: int,
    ) -> list[int]:
        """Return the prompt; only of the document anything is cut.

        Args:
            query: any text.
            document: any text.
            instruction: None for the template's own.
            truncation: of the prompt; None for none.
            max_model_len: of the model.

        Raises:
            ContextLengthError: the texts cannot fit the context, or the query leaves no room in it.
            InvalidRequestError, OverloadedError, EngineUnavailableError: as ChatTemplate.render().
        """
        limit = max_model_len if truncation is None else None
        token_ids = await self._render(query, document, instruction, limit)
        if truncation is None or len(token_ids) <= truncation.num_tokens:
            return token_ids
        samples = [await self._render(query, sample, instruction, None) for sample in _SAMPLES]
        first, last = _num_common(samples), _num_common([each[::-1] for each in samples])
        room = truncation.num_tokens - first - last
        if room < 1:
            raise ContextLengthError.of(truncation.num_tokens, first + last, 1, None, "query")
        end = len(token_ids) - last
        kept = token_ids[end - room : end] if truncation.side == "left" else token_ids[first : first + room]
        return [*token_ids[:first], *kept, *token_ids[end:]]

    async def _render(
        self, query: str, document: str, instruction: str | None, max_model_len: int | None
    ) -> list[int]:
        messages: list[Message] = [
            {"role": role, "content": text}
            for role, text in (("system", instruction), ("query", query), ("document", document))
            if text is not None
        ]
        rendered = await self._template.render_async(messages, ChatOptions(), max_model_len=max_model_len)
        return rendered.token_ids


def _num_common(many: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all begin with."""
    pairs = enumerate(zip(*many, strict=False))
    return next((i for i, each in pairs if len(set(each)) > 1), min(map(len, many)))

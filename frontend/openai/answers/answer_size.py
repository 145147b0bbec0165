"""How large may the response to a request become? Checked before anything is computed.

Counted in values are the parts whose size a few bytes of a request multiply, and which are held until they
are sent: what is repeated of the prompts in each choice, logprobs of prompts, and logprobs of the output
unless it is streamed, as a stream sends each as it comes.

    asked for                     values per token
    echo, return_token_ids        1 of the prompt, in each choice
    echo with logprobs            alternatives + 2 of the prompt, in each choice
    prompt_logprobs               alternatives + 2 of the prompt
    logprobs, without stream      alternatives + 2 of max_tokens, in each choice
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.openai.answers.logprobs import values_per_token
from splitserve.frontend.openai.schema.fields import GenerationFields


@dataclass(slots=True, frozen=True)
class AnswerShape:
    """What a request asks to be shown beside the text.

    Attributes:
        n: completions per prompt.
        num_repeats: how often token ids of a prompt, or what stands for them, are in the answer.
        echo_logprobs: alternatives in each choice's echo, None without.
        prompt_logprobs: alternatives per prompt token, None without.
        logprobs: alternatives per token of the output held until the end, None without.
    """

    n: int
    num_repeats: int = 0
    echo_logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs: int | None = None

    def num_prompt_values(self, num_prompt_tokens: int) -> int:
        """Return what is known before anything is generated, for so many tokens of prompts."""
        per_token = self.num_repeats + _values(self.prompt_logprobs) + self.n * _values(self.echo_logprobs)
        return num_prompt_tokens * per_token

    def num_values(self, prompt_lengths: Sequence[int], max_tokens: Sequence[int]) -> int:
        """Return how many values the answer has at most.

        Args:
            prompt_lengths: tokens of each prompt.
            max_tokens: of each choice, by prompt.
        """
        return self.num_prompt_values(sum(prompt_lengths)) + sum(max_tokens) * self.n * _values(self.logprobs)

    def max_tokens_within(self, limit: int, num_prompt_tokens: int) -> int | None:
        """Return how many tokens each choice of one prompt may have; None for any number."""
        if self.logprobs is None:
            return None
        return (limit - self.num_prompt_values(num_prompt_tokens)) // (self.n * _values(self.logprobs))


def shown_per_token(body: GenerationFields, num_top: int | None) -> int | None:
    """Return how many logprobs stand beside that of a token of the output, None if none are asked for."""
    return None if num_top is None else num_top + len(body.logprob_token_ids or ())


def check_answer_size(
    shape: AnswerShape, prompt_lengths: Sequence[int], max_tokens: Sequence[int], limit: int
) -> int:
    """Check and return the number of values of an answer.

    Raises:
        InvalidRequestError: it is over the limit; names what makes most of it.
    """
    num_values = shape.num_values(prompt_lengths, max_tokens)
    if num_values <= limit:
        return num_values
    num_tokens = sum(prompt_lengths)
    parts = {
        "logprobs": shape.n
        * (_values(shape.logprobs) * sum(max_tokens) + _values(shape.echo_logprobs) * num_tokens),
        "prompt_logprobs": _values(shape.prompt_logprobs) * num_tokens,
        "prompt": shape.num_repeats * num_tokens,
    }
    raise InvalidRequestError(
        f"the response would contain {num_values} values, more than {limit} (--max-answer-values): "
        "a token with "
        "logprobs counts its alternatives + 2, one of echo or return_token_ids 1, in each choice; "
        "ask for fewer prompts, n, max_tokens or logprobs",
        max(parts, key=lambda name: parts[name]),
    )


def _values(num_top: int | None) -> int:
    return 0 if num_top is None else values_per_token(num_top)

"""Holds a request to the limits of the model it is for, before an engine sees it."""

from __future__ import annotations

from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.engines.served_model import ServedModel


def check_request(request: GenerationRequest, model: ServedModel) -> None:
    """Check prompt, sampling parameters and their fit to the model's context.

    Raises:
        InvalidRequestError: names the field and its range.
        ContextLengthError: names the limit and what was asked.
    """
    sampling = request.sampling
    # What an operator allows of logprobs may be less; the API that took the request has looked at that.
    sampling.validate(model.info.vocab_size, model.max_logprobs)
    check_num_sequences(1, sampling, model.max_num_open)
    check_prompt(request.prompt_token_ids, model.info.vocab_size)
    check_context(len(request.prompt_token_ids), sampling.max_tokens, model.info.max_model_len)


def check_num_sequences(num_prompts: int, sampling: SamplingParams, max_num_open: int) -> None:
    """Check that a request's sequences find room in idle engines; otherwise no retry would ever succeed.

    Args:
        num_prompts: each has as many sequences as `sampling` says.
        sampling: validated.
        max_num_open: sequences that the engines hold at most, running and waiting.

    Raises:
        InvalidRequestError: names the limit.
    """
    name = "n" if sampling.best_of is None else "best_of"
    width = sampling.best_of or sampling.n
    if num_prompts * width > max_num_open:
        times = "" if num_prompts == 1 else " times the number of prompts"
        raise InvalidRequestError(
            f"{name}{times} must be at most {max_num_open}, which is what runs and waits at once here "
            f"(--max-num-seqs, --max-num-waiting), got {num_prompts * width}",
            name,
        )


def check_prompt(token_ids: list[int], vocab_size: int) -> None:
    """Check that there are token ids and that the model knows them.

    Raises:
        InvalidRequestError: the prompt is empty, or names the first id outside the vocabulary.
    """
    if not token_ids:
        raise InvalidRequestError("the prompt must hold at least one token", "prompt")
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InvalidRequestError(f"token ids must be from 0 to {vocab_size - 1}, got {wrong}", "prompt")


def check_context(num_prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> None:
    """Check that the prompt fits the context with the tokens asked for, or with at least one.

    Raises:
        ContextLengthError: names the limit and what was asked.
    """
    if num_prompt_tokens + (1 if max_tokens is None else max_tokens) <= max_model_len:
        return
    param = "prompt" if max_tokens is None or num_prompt_tokens >= max_model_len else "max_tokens"
    raise ContextLengthError.of(max_model_len, num_prompt_tokens, max_tokens, param)

"""LLM.beam_search: what it takes and returns, shaped as vLLM's; the search is that of use_beam_search."""

from __future__ import annotations

from dataclasses import dataclass

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.offline.outputs import PositionLogprobs, RequestOutput
from splitserve.frontend.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """How to search.

    Attributes:
        beam_width: beams, and outputs.
        max_tokens: of each output.
        ignore_eos: outputs do not end with the model's end token.
        temperature: 0; another one is refused.
        length_penalty: an output's score is its logprob over its number of tokens to this power.
        include_stop_str_in_output: as in SamplingParams.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def sampling_params(self) -> SamplingParams:
        """Return what LLM.generate takes for it; a wrong value is refused there.

        Raises:
            InvalidRequestError: beam_width is below 1.
        """
        if type(self.beam_width) is not int or self.beam_width < 1:
            raise InvalidRequestError(
                f"beam_width must be an integer of at least 1, got {self.beam_width!r}", "beam_width"
            )
        return SamplingParams(
            use_beam_search=True,
            n=self.beam_width,
            best_of=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            length_penalty=self.length_penalty,
            include_stop_str_in_output=self.include_stop_str_in_output,
            early_stopping="never",
            logprobs=0,
        )


@dataclass(slots=True)
class BeamSearchSequence:
    """One output of a search.

    Attributes:
        tokens: of the prompt and of the output.
        logprobs: per token of the output.
        cum_logprob: their sum.
        text: of all tokens.
        finish_reason: "stop" or "length".
        stop_reason: the stop string or stop token id that matched.
    """

    tokens: list[int]
    logprobs: list[PositionLogprobs]
    cum_logprob: float
    text: str
    finish_reason: str | None
    stop_reason: str | int | None


@dataclass(slots=True)
class BeamSearchOutput:
    """What was found for one prompt, the best first."""

    sequences: list[BeamSearchSequence]


def beam_output(output: RequestOutput, tokenizer: Tokenizer) -> BeamSearchOutput:
    """Return the output of a search in its own shape."""
    sequences = []
    for each in output.outputs:
        tokens = [*output.prompt_token_ids, *each.token_ids]
        sequences.append(
            BeamSearchSequence(
                tokens=tokens,
                logprobs=each.logprobs or [],
                cum_logprob=each.cumulative_logprob or 0.0,
                text=tokenizer.decode(tokens),
                finish_reason=each.finish_reason,
                stop_reason=each.stop_reason,
            )
        )
    return BeamSearchOutput(sequences)

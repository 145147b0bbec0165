"""Does a request fit what the engines hold at once? Its fields are checked where they are read."""

from __future__ import annotations

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams


def check_num_sequences(num_prompts: int, sampling: SamplingParams, max_num_open: int) -> None:
    """Check that a request's sequences fit on idle engines; otherwise no retry would ever succeed.

    Args:
        num_prompts: each has as many sequences as `sampling` says.
        sampling: validated.
        max_num_open: most sequences that the engines hold, running and waiting.

    Raises:
        InvalidRequestError: names the limit.
    """
    name = "n" if sampling.best_of is None else "best_of"
    width = sampling.best_of or sampling.n
    if num_prompts * width > max_num_open:
        times = "" if num_prompts == 1 else " times the number of prompts"
        raise InvalidRequestError(
            f"{name}{times} must be at most {max_num_open}, the number of sequences that "
            "can run and wait at once here "
            f"(--max-num-seqs, --max-num-waiting), got {num_prompts * width}",
            name,
        )

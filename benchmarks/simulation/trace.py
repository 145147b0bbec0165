"""What arrives: one column per property of a request, made up or read from a file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntColumn = npt.NDArray[np.int64]
FloatColumn = npt.NDArray[np.float64]

NO_GROUP = -1


class Trace(NamedTuple):
    """Requests in the order in which they are sent; all columns are [num_requests].

    Attributes:
        arrival_s: float64, seconds from the start, never falling; ignored by a closed loop.
        prompt_tokens: int64, >= 1.
        output_tokens: int64, >= 1; what the request generates, unless the engine's limits end it earlier.
        prefix_group: int64, requests of one group share the start of their prompts; NO_GROUP for none.
        prefix_tokens: int64, 0..prompt_tokens-1, how many tokens they share.
        tenant: int64, 0..
        priority: int64; lower is better, and counts under the priority policy only.
    """

    arrival_s: FloatColumn
    prompt_tokens: IntColumn
    output_tokens: IntColumn
    prefix_group: IntColumn
    prefix_tokens: IntColumn
    tenant: IntColumn
    priority: IntColumn

    @property
    def num_requests(self) -> int:
        """Length of every column."""
        return len(self.arrival_s)

    @property
    def num_tenants(self) -> int:
        """Tenants are 0..num_tenants-1."""
        return int(self.tenant.max()) + 1 if self.num_requests else 0


class PromptMaker:
    """Token ids of each request's prompt: equal where the trace says so, different everywhere else.

    The first token after the shared prefix and the last one are the request's index, which makes every
    prompt unique and lets the simulated worker recognise a request that comes back after a preemption.
    """

    def __init__(self, trace: Trace, seed: int) -> None:
        self._trace = trace
        self._seed = seed
        self.vocab_size = max(2**16, trace.num_requests)
        longest = int(trace.prompt_tokens.max(initial=1))
        self._filler = self._random_tokens(NO_GROUP, longest)
        self._prefixes: dict[int, npt.NDArray[np.int32]] = {}

    def prompt(self, request: int) -> bytes:
        """Return the prompt of request 0..num_requests-1 as an int32 column."""
        length = int(self._trace.prompt_tokens[request])
        num_shared = int(self._trace.prefix_tokens[request])
        tokens = self._filler[:length].copy()
        if num_shared:
            tokens[:num_shared] = self._prefix(int(self._trace.prefix_group[request]))[:num_shared]
        tokens[num_shared] = tokens[-1] = request
        return tokens.tobytes()

    def _prefix(self, group: int) -> npt.NDArray[np.int32]:
        prefix = self._prefixes.get(group)
        if prefix is None:
            in_group = self._trace.prefix_group == group
            longest = int(self._trace.prefix_tokens[in_group].max())
            prefix = self._prefixes[group] = self._random_tokens(group, longest)
        return prefix

    def _random_tokens(self, group: int, count: int) -> npt.NDArray[np.int32]:
        rng = np.random.default_rng([self._seed, group + 1])
        return rng.integers(0, self.vocab_size, count).astype("<i4")


def request_of(prompt: bytes, num_prompt_tokens: int) -> int:
    """Return the index that PromptMaker wrote into a prompt, given at least the whole prompt."""
    return int(np.frombuffer(prompt, "<i4")[num_prompt_tokens - 1])

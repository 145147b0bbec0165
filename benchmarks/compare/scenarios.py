"""What does each scenario send, and which figure comes of it?"""

from __future__ import annotations

from typing import NamedTuple


class Offline(NamedTuple):
    """Prompts given to an engine in its own process, all at once.

    Attributes:
        first_token_apart: the time of a run for one token is taken off, so that decoding alone counts.
        prompt_rate: the figure is prompt tokens per second, else new tokens per second.
    """

    num_prompts: int
    prompt_tokens: int
    num_new: int
    first_token_apart: bool = False
    prompt_rate: bool = False

    def rate(self, seconds: float, first_token_s: float) -> float:
        """Return tokens per second.

        Args:
            seconds: of a whole run.
            first_token_s: of a run for one token; 0 unless it counts apart.
        """
        if self.prompt_rate:
            return self.num_prompts * self.prompt_tokens / seconds
        num_new = self.num_new - 1 if self.first_token_apart else self.num_new
        return self.num_prompts * num_new / max(seconds - first_token_s, 1e-9)


class Online(NamedTuple):
    """Streams over HTTP, so many at a time; the figure is new tokens per second of all."""

    concurrency: int
    num_requests: int
    prompt_tokens: int = 64
    num_new: int = 64

    def warm_up(self) -> Online:
        """Return a shorter load of as many streams: batches of every size are met, and their memory taken."""
        return self._replace(num_requests=self.concurrency, num_new=16)


OFFLINE = {
    "single": Offline(1, 32, 64, first_token_apart=True),
    "throughput": Offline(32, 128, 64),
    "prefill": Offline(1, 1024, 1, prompt_rate=True),
}
ONLINE = {"c1": Online(1, 8), "c16": Online(16, 48), "c64": Online(64, 128)}
UNITS = {"prefill": "prompt tok/s"}


def concurrency_of(scenario: str) -> int:
    """Return how many clients a scenario over HTTP has."""
    return ONLINE[scenario].concurrency

"""The progress bars of the offline LLM class: loading the model, and generating."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm.auto import tqdm

from splitserve.frontend.engines.status import EngineStatus

SHOWN_INTERVAL_S = 0.1
# Into a file or a pipe every refresh is a line of its own.
LOGGED_INTERVAL_S = 10.0


def refresh_interval_s() -> float:
    """Return how often a bar is drawn: on a terminal or in a notebook for the eye, elsewhere for a log."""
    watched = sys.stderr.isatty() or "ipykernel" in sys.modules
    return SHOWN_INTERVAL_S if watched else LOGGED_INTERVAL_S


class _Bar:
    """A bar that may be switched off; used as a context manager."""

    def __init__(self, enabled: bool, total: float, description: str, form: str) -> None:
        self._bar = tqdm(
            total=total,
            desc=description,
            bar_format=form,
            disable=not enabled,
            dynamic_ncols=True,
            leave=True,
            mininterval=refresh_interval_s(),
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


class StartBar(_Bar):
    """Shows the stages of the engine's start and how much of the weights is loaded."""

    def __init__(self, enabled: bool) -> None:
        super().__init__(enabled, 1.0, "starting", "{desc}: {percentage:3.0f}%|{bar}| {elapsed}")

    def __enter__(self) -> StartBar:
        return self

    def show(self, status: EngineStatus) -> None:
        """Show what the engine says of itself."""
        if status.state == "ready":
            self._bar.set_description_str("ready", refresh=False)
            self._bar.update(1.0 - self._bar.n)
        elif status.stage:
            self._bar.set_description_str(status.stage, refresh=False)
            self._bar.update(max(0.0, status.fraction - self._bar.n))


class GenerationBar(_Bar):
    """Counts finished prompts and shows tokens per second; counted on one thread, shown on another."""

    def __init__(self, num_prompts: int, enabled: bool) -> None:
        form = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
        super().__init__(enabled, num_prompts, "prompts", form)
        self._begin_s = time.monotonic()
        self._num_done = 0
        self._num_prompt_tokens = 0
        self._num_tokens = 0

    def __enter__(self) -> GenerationBar:
        return self

    def count_tokens(self, count: int) -> None:
        """Count generated tokens."""
        self._num_tokens += count

    def count_done(self, num_prompt_tokens: int) -> None:
        """Count a finished prompt and its tokens."""
        self._num_done += 1
        self._num_prompt_tokens += num_prompt_tokens

    def show(self) -> None:
        """Bring the bar up to date."""
        took_s = max(1e-6, time.monotonic() - self._begin_s)
        rates = f"in {self._num_prompt_tokens / took_s:.0f} tok/s, out {self._num_tokens / took_s:.0f} tok/s"
        self._bar.set_postfix_str(rates, refresh=False)
        self._bar.update(self._num_done - self._bar.n)

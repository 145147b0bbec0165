"""What LLM is beside its outputs: a model that can be asked about itself, and closed."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.questions import DEFAULT_SLEEP_LEVEL
from splitserve.frontend.offline.control.metrics import Metric
from splitserve.frontend.offline.offline_model import OfflineModel
from splitserve.frontend.text.tokenizer import Tokenizer


class LLMControl:
    """Methods of LLM that make no outputs.

    Args:
        model: started.
    """

    def __init__(self, model: OfflineModel) -> None:
        self._model = model
        self._served = model.served

    def get_metrics(self) -> list[Metric]:
        """Return the engine's figures as they are now, under the names that /metrics has.

        Raises:
            SplitServeError: the engine failed, or does not answer.
        """
        return self._model.metrics()

    def sleep(self, level: int = DEFAULT_SLEEP_LEVEL) -> None:
        """Give up memory until wake_up(), and return once it is free; what runs waits.

        What is asked for meanwhile is refused with EngineAsleepError.

        Args:
            level: 1 gives up the KV cache, and the weights stay where they are; 2 gives up both.

        Raises:
            InvalidRequestError: another level.
            SplitServeError: the engine failed, or does not answer.
        """
        self._model.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory again, and return once the engine serves; what waited goes on.

        After level 1 that takes as long as allocating a KV cache, after level 2 as long as loading the model.

        Args:
            tags: None, or both "weights" and "kv_cache": the engine wakes up as a whole.

        Raises:
            InvalidRequestError: other tags.
            SplitServeError: the engine failed, or does not serve in time.
        """
        self._model.wake_up(tags)

    def reset_prefix_cache(self) -> bool:
        """Let nobody find any prefix in the cache that is there now; what runs goes on. Always True.

        Raises:
            SplitServeError: the engine failed, or does not answer.
        """
        self._model.reset_prefix_cache()
        return True

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._served.assets.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what generation_config.json says; `do_sample: false` there is temperature 0 here."""
        return self._model.default_params()

    def close(self) -> None:
        """End the engine; safe to call twice. Nothing can be generated afterwards."""
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

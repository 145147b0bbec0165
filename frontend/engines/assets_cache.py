"""Tokenizer, chat template and sampling defaults of the models that the engines serve, each loaded once."""

from __future__ import annotations

import asyncio
import time

from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.frontend.text.model_assets import ModelAssets, load_model_assets

_MAX_CACHED_MODELS = 8


class AssetsCache:
    """Loads each model's assets once for all engines that serve it; keeps those of the last few models."""

    def __init__(self, directory: str = "", chat_template: str = "") -> None:
        """Args: as those of load_model_assets()."""
        self._directory = directory
        self._chat_template = chat_template
        self._lock = asyncio.Lock()
        self._loaded: dict[str, tuple[ModelInfo, ModelAssets, int]] = {}

    async def get(self, info: ModelInfo) -> tuple[ModelAssets, int]:
        """Return the assets and the Unix time at which they were first loaded.

        Raises:
            ModelLoadError: names the file that is missing or wrong.
        """
        async with self._lock:
            known = self._loaded.get(info.path)
            if known is None or known[0] != info:
                assets = await asyncio.to_thread(
                    load_model_assets, info, self._directory, self._chat_template
                )
                known = self._loaded[info.path] = (info, assets, int(time.time()))
                if len(self._loaded) > _MAX_CACHED_MODELS:
                    del self._loaded[next(iter(self._loaded))]
            return known[1:]

    async def close(self) -> None:
        """Stop the chat-template processes and clear the cache."""
        async with self._lock:
            loaded, self._loaded = list(self._loaded.values()), {}
        for _, assets, _ in loaded:
            if assets.chat_template is not None:
                assets.chat_template.close()

"""What benchmarks.gpu_engine compares with: transformers' generate, and its continuous batching."""

from __future__ import annotations

import time
from pathlib import Path

import torch


class Transformers:
    """The same shape with random weights; needs the transformers package."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

        with device:
            config = AutoConfig.from_pretrained(folder)
            # Nothing ends before its last token.
            config.eos_token_id = None
            self._model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        self._device = device
        self._config = GenerationConfig

    def decode(self, batch: int, context: int, steps: int = 32) -> float:
        """Seconds per step of generate(), the prompt's taken off."""
        ids = torch.ones(batch, context, dtype=torch.long, device=self._device)
        self._generate(ids, 2)
        return max(1e-9, self._generate(ids, 1 + steps) - self._generate(ids, 1)) / steps

    def serve(self, requests: int, tokens: int) -> float:
        """Seconds of generate_batch() over prompts of so many tokens, for as many output tokens each.

        Cache and graphs are made by a first run of other prompts, which does not count.

        Raises:
            RuntimeError: a request was not answered in full.
        """
        try:
            self._answer(requests, tokens, first_id=150)
            started = time.perf_counter()
            self._answer(requests, tokens, first_id=3)
            return time.perf_counter() - started
        finally:
            self._model.destroy_cached_continuous_batching_manager()

    def _answer(self, requests: int, tokens: int, first_id: int) -> None:
        prompts = [[first_id + (i + j) % 140 for j in range(tokens)] for i in range(requests)]
        config = self._config(max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        # What fails is logged there, and left out.
        answers = self._model.generate_batch(prompts, generation_config=config, persistent_manager=True)
        lengths = [len(answer.generated_tokens) for answer in answers.values()]
        if lengths != [tokens] * requests:
            raise RuntimeError(f"transformers gave {lengths} tokens, not {tokens} to each of {requests}")

    @torch.inference_mode()
    def _generate(self, ids: torch.Tensor, tokens: int) -> float:
        config = self._config(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        started = time.perf_counter()
        self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

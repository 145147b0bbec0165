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
        """Seconds of generate_batch() over prompts of so many tokens, for as many output tokens each."""
        prompts = [[3 + (i + j) % 300 for j in range(tokens)] for i in range(requests)]
        config = self._config(max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        started = time.perf_counter()
        self._model.generate_batch(prompts, generation_config=config)
        return time.perf_counter() - started

    @torch.inference_mode()
    def _generate(self, ids: torch.Tensor, tokens: int) -> float:
        config = self._config(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        started = time.perf_counter()
        self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

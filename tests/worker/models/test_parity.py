"""Logits and greedy tokens against transformers, on tiny random checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.checkpoint.config.architectures import ARCHITECTURES, read_model_config
from tests.checkpoints import CheckpointCache, load_reference
from tests.encoders import KINDS
from tests.worker.models.cases import CASES, MAIN_CASES, prompt
from tests.worker.models.driver import Driver, Row

PROMPT_LEN = 45
NUM_GREEDY = 64


def reference_logits(path: Path, dtype: torch.dtype, tokens: list[int]) -> torch.Tensor:
    model = load_reference(path, dtype)
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def test_every_architecture_has_cases(checkpoints: CheckpointCache) -> None:
    made = {read_model_config(checkpoints.get(CASES[case])).architecture for case in MAIN_CASES}
    # Those of encoders are in test_encoder.py.
    assert made | {f"{name}Model" for name in KINDS.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("case", CASES)
def test_prefill_logits_in_fp32_are_those_of_transformers(case: str, checkpoints: CheckpointCache) -> None:
    path = checkpoints.get(CASES[case])
    driver = Driver(path)
    tokens = prompt(driver.config.vocab_size, PROMPT_LEN)
    expected = reference_logits(path, torch.float32, tokens)
    torch.testing.assert_close(driver.prefill_logits(tokens), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_prefill_logits_in_bf16_err_at_most_twice_as_much_as_transformers(
    case: str, checkpoints: CheckpointCache
) -> None:
    path = checkpoints.get(dataclasses.replace(CASES[case], dtype=torch.bfloat16))
    driver = Driver(path, torch.bfloat16)
    tokens = prompt(driver.config.vocab_size, PROMPT_LEN)
    exact = reference_logits(path, torch.float32, tokens)
    allowed = 2 * (reference_logits(path, torch.bfloat16, tokens) - exact).square().mean().sqrt()
    error = (driver.prefill_logits(tokens) - exact).square().mean().sqrt()
    assert error <= allowed


@pytest.mark.parametrize("case", MAIN_CASES)
def test_a_long_prompt_in_chunks_has_the_logits_of_transformers(
    case: str, checkpoints: CheckpointCache
) -> None:
    """Far beyond every window, up to the last position."""
    path = checkpoints.get(CASES[case])
    driver = Driver(path)
    tokens = prompt(driver.config.vocab_size, driver.config.max_model_len)
    row = Row(tokens)
    hidden = torch.cat([driver.run((row, count)) for count in (300, 199, 12, 1)])
    expected = reference_logits(path, torch.float32, tokens)
    torch.testing.assert_close(driver.logits(hidden), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "chunk"), [(case, 0) for case in CASES] + [(case, 7) for case in MAIN_CASES]
)
def test_greedy_tokens_in_fp32_are_those_of_transformers(
    case: str, chunk: int, checkpoints: CheckpointCache
) -> None:
    path = checkpoints.get(CASES[case])
    driver = Driver(path)
    tokens = prompt(driver.config.vocab_size, PROMPT_LEN)
    generated = driver.greedy(tokens, NUM_GREEDY, chunk)
    # By induction: if each token is the reference's choice after those before it, the sequences are equal.
    expected = reference_logits(path, torch.float32, tokens + generated[:-1])[PROMPT_LEN - 1 :].argmax(-1)
    assert generated == expected.tolist()

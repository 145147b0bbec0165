"""Logits and greedy tokens of models with the library's layers, against the library itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.worker.generic.library_models import SERVED, make_model, write_checkpoint
from tests.worker.models.cases import prompt
from tests.worker.models.driver import Driver, Row

PROMPT_LEN = 45
NUM_GREEDY = 64


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of checkpoints by model_type."""
    root = tmp_path_factory.mktemp("library")
    return {model_type: write_checkpoint(model_type, root / model_type) for model_type in SERVED}


def drive(path: Path, dtype: torch.dtype = torch.float32, quantization: str = "none") -> Driver:
    return Driver(path, dtype, quantization, "transformers")


def reference_logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits.float()


@pytest.mark.parametrize("model_type", SERVED)
def test_prefill_logits_in_fp32_are_those_of_the_library(model_type: str, paths: dict[str, Path]) -> None:
    driver = drive(paths[model_type])
    tokens = prompt(driver.config.vocab_size, PROMPT_LEN)
    expected = reference_logits(make_model(model_type), tokens)
    torch.testing.assert_close(driver.prefill_logits(tokens), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("model_type", SERVED)
def test_prefill_logits_in_bf16_err_at_most_twice_as_much_as_the_library(
    model_type: str, paths: dict[str, Path]
) -> None:
    import transformers

    path = paths[model_type]
    rounded = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()
    driver = drive(path, torch.bfloat16)
    tokens = prompt(driver.config.vocab_size, PROMPT_LEN)
    exact = reference_logits(rounded.float(), tokens)
    again = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()
    allowed = 2 * (reference_logits(again, tokens) - exact).square().mean().sqrt()
    error = (driver.prefill_logits(tokens) - exact).square().mean().sqrt()
    assert error <= allowed


@pytest.mark.parametrize("model_type", SERVED)
def test_a_long_prompt_in_chunks_has_the_logits_of_the_library(
    model_type: str, paths: dict[str, Path]
) -> None:
    """Beyond every window, up to the last position."""
    driver = drive(paths[model_type])
    length = driver.config.max_model_len
    tokens = prompt(driver.config.vocab_size, length)
    row = Row(tokens)
    hidden = torch.cat([driver.run((row, count)) for count in (length - 113, 100, 12, 1)])
    expected = reference_logits(make_model(model_type), tokens)
    torch.testing.assert_close(driver.logits(hidden), expected, rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize("model_type", SERVED)
def test_greedy_tokens_in_fp32_are_those_of_the_library(model_type: str, paths: dict[str, Path]) -> None:
    driver = drive(paths[model_type])
    tokens = prompt(driver.config.vocab_size, PROMPT_LEN)
    generated = driver.greedy(tokens, NUM_GREEDY)
    # By induction: if each token is the reference's choice after those before it, the sequences are equal.
    expected = reference_logits(make_model(model_type), tokens + generated[:-1])[PROMPT_LEN - 1 :].argmax(-1)
    assert generated == expected.tolist()


@pytest.mark.parametrize("model_type", ["gpt_neox", "gemma", "opt"])
def test_without_a_head_hidden_states_are_those_of_the_library(
    model_type: str, paths: dict[str, Path]
) -> None:
    """As of models that make embeddings."""
    driver = Driver(paths[model_type], model_impl="transformers", has_head=False)
    tokens = prompt(driver.config.vocab_size, PROMPT_LEN)
    model = make_model(model_type)
    with torch.inference_mode():
        expected = model.base_model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]  # type: ignore[operator]
    found = driver.run((Row(tokens), PROMPT_LEN))
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model_type", SERVED)
def test_a_row_has_the_same_bits_alone_and_in_company(
    model_type: str, dtype: torch.dtype, paths: dict[str, Path]
) -> None:
    driver = drive(paths[model_type], dtype)
    assert driver.model.is_recordable, "a replay of each of these has the bits of a step"
    vocab_size = driver.config.vocab_size
    alone, beside = Row(prompt(vocab_size, 40)), Row(prompt(vocab_size, 40))
    others = [Row(prompt(vocab_size, 60)[n:]) for n in (1, 7, 20)]
    expected = torch.cat([driver.run((alone, count)) for count in (33, 1, 1, 5)])
    first = driver.run((others[0], 9), (beside, 33), (others[1], 30))[9:42]
    second = driver.run((beside, 1), (others[0], 1))[:1]
    third = driver.run((others[2], 3), (others[1], 1), (beside, 1))[4:]
    fourth = driver.run((beside, 5))
    assert torch.equal(torch.cat([first, second, third, fourth]), expected)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("model_type", ["gpt_neox", "llama", "opt"])
def test_quantized_weights_leave_the_greedy_tokens_near(
    model_type: str, quantization: str, paths: dict[str, Path]
) -> None:
    plain = drive(paths[model_type], torch.bfloat16)
    tokens = prompt(plain.config.vocab_size, PROMPT_LEN)
    expected = plain.prefill_logits(tokens)
    found = drive(paths[model_type], torch.bfloat16, quantization).prefill_logits(tokens)
    assert not torch.equal(found, expected)
    error = (found - expected).norm() / expected.norm()
    assert error < {"int8": 0.06, "int4": 0.6}[quantization]

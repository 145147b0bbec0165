"""Steps of models with the library's layers that are launched from Python: what is rotated and left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from splitserve.worker.generic.model import TransformersModel
from splitserve.worker.generic.rotation import StepRotation
from splitserve.worker.generic.tracing import Launcher
from splitserve.worker.ops.cpu import ops
from tests.worker.generic.library_models import make_model, write_checkpoint
from tests.worker.models.cases import prompt
from tests.worker.models.driver import Driver, Row

FILE = "transformers.models.llama.modeling_llama"


def count_rotations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of what the kernel rotates from now on."""
    sizes: list[int] = []
    rotate = ops.whole.rotate

    def counted(x: torch.Tensor, *rest: torch.Tensor) -> None:
        sizes.append(x.shape[1])
        rotate(x, *rest)

    monkeypatch.setattr(ops.whole, "rotate", counted)
    return sizes


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "phi", "gpt_neox"])
def test_queries_and_keys_are_rotated_by_the_kernel(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halves that turn: all of a head, or the first part of it."""
    driver = Driver(write_checkpoint(model_type, tmp_path), model_impl="transformers")
    sizes = count_rotations(monkeypatch)
    driver.run((Row(prompt(driver.config.vocab_size, 9)), 9))
    heads = [driver.config.num_heads, driver.model.num_kv_heads]
    assert sizes == heads * driver.config.num_layers


def test_neighbours_that_turn_are_left_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(write_checkpoint("helium", tmp_path), model_impl="transformers")
    sizes = count_rotations(monkeypatch)
    driver.run((Row(prompt(driver.config.vocab_size, 9)), 9))
    assert not sizes


def test_the_library_has_its_function_back_after_a_step_even_if_that_fails() -> None:
    model = make_model("llama")
    file = vars(sys.modules[FILE])
    function = file["apply_rotary_pos_emb"]
    replaced = []

    def fail() -> None:
        with StepRotation(model, Launcher()).step():
            replaced.append(file["apply_rotary_pos_emb"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert replaced != [function]
    assert file["apply_rotary_pos_emb"] is function


def test_what_is_not_laid_out_as_usual_is_rotated_by_the_library() -> None:
    """Keys that one head has for all queries, and angles that are the same for all tokens."""
    rotation = StepRotation(make_model("llama"), Launcher())
    file = vars(sys.modules[FILE])
    q, angles = torch.randn(1, 4, 5, 16), torch.randn(1, 5, 8).repeat(1, 1, 2)
    shared, few = torch.randn(1, 1, 5, 16).expand(1, 2, 5, 16), angles[:, :1]
    for k, turned in ((shared, angles), (q + 1, few)):
        expected = file["apply_rotary_pos_emb"](q, k, turned.cos(), turned.sin())
        with rotation.step():
            found = file["apply_rotary_pos_emb"](q, k, turned.cos(), turned.sin())
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("model_type", ["llama", "gpt_neox", "opt"])
def test_tokens_that_are_not_wanted_change_no_bit_of_others(model_type: str, tmp_path: Path) -> None:
    """Behind the last attention only wanted tokens are computed, also where branches stand side by side."""
    driver = Driver(write_checkpoint(model_type, tmp_path), torch.bfloat16, model_impl="transformers")
    tokens = prompt(driver.config.vocab_size, 90)
    whole = driver.run((Row(tokens), 90))
    assert torch.equal(driver.run((Row(tokens), 90), outputs=[3, 89]), whole[[3, 89]])
    assert torch.equal(driver.run((Row(tokens), 90)), whole)


def test_the_last_layer_multiplies_wanted_tokens_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(write_checkpoint("llama", tmp_path), model_impl="transformers")
    assert isinstance(driver.model, TransformersModel)
    rows: list[int] = []
    linear, gate = ops.linear, ops.activated.gated

    def counted(out: torch.Tensor, x: torch.Tensor, *rest: object) -> None:
        rows.append(len(x))
        linear(out, x, *rest)  # type: ignore[arg-type]

    def counted_gate(out: torch.Tensor, x: torch.Tensor, *rest: object) -> None:
        rows.append(len(x))
        gate(out, x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ops, "linear", counted)
    monkeypatch.setattr(ops.activated, "gated", counted_gate)
    driver.run((Row(prompt(driver.config.vocab_size, 40)), 40), outputs=[39])
    # Query, key, value, output, gate and up, down.
    assert rows == [40] * 6 + [40] * 3 + [1] * 3

"""A row's results are the same bits, whatever rows are beside it and however its tokens are cut up."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from splitserve.worker.device import workspace
from tests.checkpoints import CheckpointCache
from tests.worker.models.cases import CASES, MAIN_CASES, prompt
from tests.worker.models.driver import Driver, Row

LENGTH = 41
DTYPES = [torch.float32, torch.bfloat16]
QUANTIZED = [
    ("llama-biases-sharded", torch.bfloat16, "int8"),
    ("gpt2-tied", torch.bfloat16, "int4"),
    ("qwen2moe", torch.bfloat16, "int8"),
    ("qwen3moe", torch.bfloat16, "int4"),
]


@pytest.fixture(
    params=[*((case, dtype, "none") for case in MAIN_CASES for dtype in DTYPES), *QUANTIZED], ids=str
)
def driver(request: pytest.FixtureRequest, checkpoints: CheckpointCache) -> Driver:
    case, dtype, quantization = request.param
    return Driver(checkpoints.get(dataclasses.replace(CASES[case], dtype=dtype)), dtype, quantization)


@pytest.fixture
def tokens(driver: Driver) -> list[int]:
    return prompt(driver.config.vocab_size, LENGTH)


def alone(driver: Driver, tokens: list[int]) -> torch.Tensor:
    row = Row(tokens)
    hidden = driver.run((row, len(tokens)))
    driver.release(row)
    return hidden


def others(driver: Driver) -> list[Row]:
    """Rows in the middle of their sequences, at odd lengths."""
    rows = [Row(prompt(driver.config.vocab_size, 30 + i, seed=i)) for i in range(5)]
    for i, row in enumerate(rows):
        driver.run((row, 3 + 5 * i))
    return rows


def test_rows_that_lie_apart_hold_the_same_bits(
    driver: Driver, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(driver, tokens)
    # So narrow that rows of these models are as wide as pages, too.
    monkeypatch.setattr(workspace, "_CONFLICT_BYTES", 16)
    assert torch.equal(alone(driver, tokens), expected)


def test_a_prefill_among_other_rows_is_the_same_as_alone(driver: Driver, tokens: list[int]) -> None:
    expected = alone(driver, tokens)
    a, b, c, d, e = others(driver)
    row = Row(tokens)
    hidden = driver.run((a, 1), (b, 9), (row, LENGTH), (c, 1), (d, 1), (e, 7))
    assert torch.equal(hidden[10 : 10 + LENGTH], expected)


def test_leaving_tokens_out_of_the_last_layer_changes_neither_the_others_nor_the_cache(
    driver: Driver, tokens: list[int]
) -> None:
    expected = alone(driver, tokens)
    (a, b, *_), row = others(driver), Row(tokens)
    steps = [(a, 1), (row, LENGTH - 1), (b, 9)]
    hidden = driver.run(*steps, outputs=[0, LENGTH - 1, LENGTH - 2])
    assert torch.equal(hidden[1:], expected[[LENGTH - 2, LENGTH - 3]])
    assert torch.equal(driver.run((row, 1)), expected[-1:])


@pytest.mark.parametrize("chunks", [[1] * LENGTH, [40, 1], [7, 8, 9, 17]])
def test_a_prefill_in_chunks_is_the_same_as_in_one_pass(
    driver: Driver, tokens: list[int], chunks: list[int]
) -> None:
    row = Row(tokens)
    hidden = torch.cat([driver.run((row, count)) for count in chunks])
    assert torch.equal(hidden, alone(driver, tokens))


def test_decode_among_other_rows_is_the_same_as_prefill(driver: Driver, tokens: list[int]) -> None:
    expected = alone(driver, tokens)
    neighbours = others(driver)
    row = Row(tokens)
    driver.run((row, 20))
    found = []
    for i in range(20, LENGTH):
        # Neighbours come and go from step to step.
        beside = [
            (neighbour, 1) for neighbour in neighbours[i % 3 : 2 + i % 4] if neighbour.num_computed < 30
        ]
        found.append(driver.run(*beside, (row, 1))[-1:])
    assert torch.equal(torch.cat(found), expected[20:])


def test_logits_do_not_depend_on_how_many_rows_ask(driver: Driver, tokens: list[int]) -> None:
    hidden = alone(driver, tokens)
    together = driver.logits(hidden)
    assert torch.equal(together, torch.cat([driver.logits(hidden[i : i + 1]) for i in range(LENGTH)]))
    assert torch.equal(together[3:8], driver.logits(hidden[3:8]))

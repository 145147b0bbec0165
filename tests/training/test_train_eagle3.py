"""Does a head learn for what it will read in use, and is it written as one that can be served?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.draft_check import read_draft_config
from tests.training.test_distill import FOLDER, rows
from training.checkpoint import model_config
from training.eagle3 import READ_LAYERS, Eagle3
from training.train_eagle3 import Teacher, loss_of, save_head


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take long where others use the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CONFIG = LlamaConfig(
    hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8
)


@torch.no_grad()
def test_every_round_computes_what_a_head_in_use_does() -> None:
    torch.manual_seed(3)
    head = Eagle3(CONFIG, torch.randn(50, 32))
    states, tokens = torch.randn(1, 9, len(READ_LAYERS) * 32), torch.randint(50, (1, 9))
    causal = torch.ones(1, 9, 9, dtype=torch.bool).tril()
    rounds = head(states, tokens, causal, num_rounds=3)
    embedded = functional.embedding(tokens, head._table)
    for num_read in (1, 4, 7):
        stream = head.fc(states[:, :num_read])
        for logits in rounds:
            count = stream.shape[1]
            out = head.midlayer(stream, embedded[:, :count], causal[:, :count, :count], [])
            found = functional.linear(head.norm(out[:, -1]), head._table)
            torch.testing.assert_close(found, logits[:, count - 1], atol=1e-4, rtol=1e-4)
            stream = torch.cat((stream, out[:, -1:]), dim=1)


def test_a_step_lowers_the_loss_and_what_is_written_drafts_for_the_demo_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.bfloat16).eval().requires_grad_(False)
    head = Eagle3(model_config(), model.get_input_embeddings().weight.detach().float())
    teacher, optimizer = Teacher(model), torch.optim.AdamW(head.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss, _agreement = loss_of(head, teacher, rows(), num_rounds=2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]
    save_head(head, tmp_path)
    config = read_draft_config(str(tmp_path), read_model_config(FOLDER), "eagle3")
    assert config.draft_head is not None
    assert config.draft_head.read_layers == READ_LAYERS
    assert not config.draft_head.has_own_head


def test_the_states_at_the_end_are_those_in_front_of_the_last_norm() -> None:
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    states, logits = Teacher(model).read(
        torch.arange(6)[None], torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    )
    found = model.lm_head(model.model.norm(states[..., -model.config.hidden_size :]))
    assert found.detach() == pytest.approx(logits, abs=1e-4)

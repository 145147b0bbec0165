"""A model of three kinds of layers: some see all tokens, others the last 40, others the last 12."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.models.mistral import modeling_mistral

from splitserve.engine_core.checkpoint.config.families import mistral
from tests.checkpoints import CheckpointCache, CheckpointSpec, load_reference
from tests.worker.kv_cache.test_window_groups import BLOCK, BUDGET, MAX_LEN, prompt_of, serve, ungrouped

WINDOWS = (12, 40, 0, 12, 40, 12)
SPEC = CheckpointSpec("mistral", {"num_hidden_layers": len(WINDOWS), "max_position_embeddings": MAX_LEN})


@pytest.fixture
def three_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Mistral's layers these windows, here and in the transformers library, whose configs know one."""
    defaults = mistral._DEFAULTS._replace(windows=lambda config, num_layers: WINDOWS)
    monkeypatch.setattr(mistral, "_DEFAULTS", defaults)
    original = modeling_mistral.MistralDecoderLayer.forward

    def forward(
        layer: modeling_mistral.MistralDecoderLayer,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **given: object,
    ) -> torch.Tensor:
        attention = layer.self_attn
        config = copy.copy(attention.config)
        config.sliding_window = WINDOWS[attention.layer_idx] or None
        make = create_sliding_window_causal_mask if config.sliding_window else create_causal_mask
        mask = make(config, hidden_states, None, None)
        attended: torch.Tensor = original(layer, hidden_states, attention_mask=mask, **given)
        return attended

    monkeypatch.setattr(modeling_mistral.MistralDecoderLayer, "forward", forward)


@pytest.mark.usefixtures("three_kinds")
@pytest.mark.parametrize("settings", [{}, {"model_impl": "transformers"}], ids=["native", "library"])
def test_tokens_are_those_of_transformers_and_groups_change_no_bit(
    checkpoints: CheckpointCache, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    """Prompts in chunks, equal prefixes, preemption, and a tier of blocks in host memory."""
    whole = ungrouped(checkpoints, monkeypatch, SPEC, **settings)
    num_blocks = 60 + 5 * (-(-(BUDGET + BUDGET) // BLOCK) + 1)
    grouped = serve(checkpoints, num_blocks, SPEC, num_host_blocks=num_blocks, **settings)
    assert (grouped.model.sliding_window, grouped.model.group_windows) == (0, [40, 40, 12, 12, 12])
    prompt = prompt_of(90, 0)
    for served in (whole, grouped):
        for length in (70, 90, 9):
            served.add(prompt_of(length, 0), 90)
        greedy = served.add(prompt, 90, temperature=0.0)
        served.play()
        # The next turn of the last one, which finds its history.
        served.add([*prompt, *served.tokens[greedy], 5, 6], 20)
        served.play()
    assert grouped.tokens == whole.tokens
    assert grouped.logprobs == whole.logprobs
    assert grouped.engine.stats().num_preemptions > 0
    assert grouped.cached[4] >= 170
    reference = load_reference(checkpoints.get(SPEC), torch.float32)
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + grouped.tokens[greedy][:-1]]), use_cache=False).logits[0]
    assert grouped.tokens[greedy] == logits[len(prompt) - 1 :].argmax(-1).tolist()


@pytest.mark.usefixtures("three_kinds")
def test_a_long_generation_keeps_of_each_layer_what_it_sees(checkpoints: CheckpointCache) -> None:
    served = serve(checkpoints, 400, SPEC)
    served.add(prompt_of(20, 0), MAX_LEN - 20)
    served.play()
    # One layer keeps 640 tokens. Of the others each keeps its window, which may begin and end inside a block,
    # and a block for each of the steps in flight.
    held = [-(-window // BLOCK) + 3 for window in WINDOWS if window]
    assert served.most_blocks <= MAX_LEN // BLOCK + sum(held)

"""The choice of experts in groups on a GPU, as on the CPU."""

from __future__ import annotations

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.layers.experts import Routing
from tests.gpu.conftest import Gpu
from tests.worker.ops.test_experts import routing_of
from tests.worker.ops.test_grouped_route import SIGMOID, SIZES, SOFTMAX


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rule", [SOFTMAX, SIGMOID, SIGMOID._replace(adds_up=False)], ids=str)
def test_choices_are_those_of_the_cpu(gpu: Gpu, rule: object, has_bias: bool) -> None:
    assert isinstance(rule, type(SOFTMAX))
    for tokens, num_experts, chosen, groups, chosen_groups in SIZES:
        logits = 2 * torch.randn(tokens, num_experts)
        bias = torch.randn(num_experts) / 4 if has_bias else None
        of_groups = rule._replace(num_groups=groups, num_chosen=chosen_groups)
        expected = routing_of(tokens, num_experts, chosen)
        ops.experts.grouped_route(expected, logits, of_groups, bias)
        found = Routing(*(torch.full_like(x, -1).to(gpu.device) for x in expected))
        own_bias = None if bias is None else bias.to(gpu.device)
        gpu.ops.experts.grouped_route(found, logits.to(gpu.device), of_groups, own_bias)
        for name in ("ids", "places", "starts"):
            assert torch.equal(getattr(found, name).cpu(), getattr(expected, name)), (name, tokens)
        torch.testing.assert_close(found.weights.cpu(), expected.weights, rtol=3e-6, atol=0)


def test_a_token_without_numbers_has_experts_and_no_weights(gpu: Gpu) -> None:
    rule = SIGMOID._replace(num_groups=4, num_chosen=2)
    found = Routing(*(x.to(gpu.device) for x in routing_of(2, 8, 3)))
    logits = torch.stack((torch.full((8,), torch.nan), torch.randn(8)))
    gpu.ops.experts.grouped_route(found, logits.to(gpu.device), rule, torch.zeros(8, device=gpu.device))
    assert len(set(found.ids[0].tolist())) == 3
    assert found.weights[0].isnan().all()
    assert found.weights[1].isfinite().all()

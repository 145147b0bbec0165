"""The choice of experts in groups, by the rules of DeepSeek V2 and V3."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.decode import Recording
from splitserve.worker.ops.layers.experts import GroupRule, Routing
from tests.worker.ops.test_experts import routing_of

# Tokens, experts, experts per token, groups, groups per token.
SIZES = [(1, 2, 1, 1, 1), (5, 8, 3, 4, 2), (33, 60, 6, 6, 3), (2, 256, 8, 8, 4), (3, 384, 8, 1, 1)]
SOFTMAX = GroupRule(False, 1, 1, is_sigmoid=False, counts_two=False, scaling=1.5)
SIGMOID = GroupRule(True, 1, 1, is_sigmoid=True, counts_two=True, scaling=2.5)


def route(logits: Tensor, chosen: int, rule: GroupRule, bias: Tensor | None = None) -> Routing:
    routing = routing_of(logits.shape[0], logits.shape[1], chosen)
    ops.experts.grouped_route(routing, logits, rule, bias)
    return routing


def expected(logits: Tensor, chosen: int, rule: GroupRule, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return ids and weights, float64 [T, K], of the rule as it is written down."""
    exact = logits.double()
    scores = exact.sigmoid() if rule.is_sigmoid else exact.softmax(-1)
    judged = scores if bias is None else scores + bias.double()
    by_group = judged.view(len(logits), rule.num_groups, -1)
    best = by_group.topk(2 if rule.counts_two else 1, dim=-1).values.sum(-1)
    kept = torch.zeros_like(best).scatter(1, best.topk(rule.num_chosen, dim=-1).indices, 1.0).bool()
    judged = by_group.masked_fill(~kept[..., None], float("-inf")).view(logits.shape)
    ids = judged.topk(chosen, dim=-1).indices
    weights = scores.gather(1, ids)
    if rule.adds_up:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights * rule.scaling


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rule", [SOFTMAX, SIGMOID, SIGMOID._replace(adds_up=False)], ids=str)
@pytest.mark.parametrize(("tokens", "num_experts", "chosen", "groups", "chosen_groups"), SIZES)
def test_experts_of_the_best_groups_are_chosen_with_their_scores(
    tokens: int,
    num_experts: int,
    chosen: int,
    groups: int,
    chosen_groups: int,
    rule: GroupRule,
    has_bias: bool,
) -> None:
    logits = 2 * torch.randn(tokens, num_experts)
    bias = torch.randn(num_experts) / 4 if has_bias else None
    rule = rule._replace(num_groups=groups, num_chosen=chosen_groups)
    found = route(logits, chosen, rule, bias)
    ids, weights = expected(logits, chosen, rule, bias)
    assert torch.equal(found.ids.long(), ids)
    assert (found.weights / weights - 1).abs().max() < 3e-6
    by_expert = found.ids.flatten().long().argsort(stable=True)
    assert torch.equal(found.places.long()[by_expert], torch.arange(tokens * chosen))
    counts = found.ids.flatten().long().bincount(minlength=num_experts)
    assert found.starts.tolist() == [0, *counts.cumsum(0).tolist()]
    alone = route(logits[-1:], chosen, rule, bias)
    assert torch.equal(alone.weights[0], found.weights[-1])


def test_a_token_without_numbers_has_experts_and_no_weights() -> None:
    rule = SIGMOID._replace(num_groups=4, num_chosen=2)
    found = route(torch.full((1, 8), torch.nan), 3, rule, torch.zeros(8))
    assert len(set(found.ids[0].tolist())) == 3
    assert found.weights.isnan().all()


def test_a_recorded_choice_reads_the_logits_of_the_replay() -> None:
    logits, rule = torch.randn(2, 8), SIGMOID._replace(num_groups=4, num_chosen=2)
    routing = routing_of(2, 8, 3)
    with Recording() as recording:
        ops.experts.grouped_route(routing, logits, rule)
    logits.copy_(torch.randn(2, 8))
    recording.replay()
    assert torch.equal(routing.ids, route(logits, 3, rule).ids)


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        (SIGMOID._replace(num_groups=3), "do not divide the 8 experts"),
        (SIGMOID._replace(num_groups=8, num_chosen=4), "have no two"),
        (SIGMOID._replace(num_groups=4), "do not hold 3 experts"),
        (SIGMOID._replace(scaling=0.0), "scaling"),
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_followed_is_refused(rule: GroupRule, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        route(torch.zeros(1, 8), 3, rule)

"""All kernels under graph capture: nothing but work on the captured stream, so that replays repeat it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.gpu_attention import Work, attention_cases
from benchmarks.gpu_sampling import sampling_cases
from splitserve.worker.ops.dense_weight import DenseWeight
from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.turning import make_table

TOKENS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 5, 256, 4, 2, 64


class Step:
    """Some of a decoder layer's work on fixed buffers."""

    def __init__(self, gpu: Gpu) -> None:
        def randn(*shape: int) -> Tensor:
            return gpu.randn(*shape, dtype=torch.bfloat16)

        self.ops = gpu.ops
        self.ids = torch.arange(TOKENS, dtype=torch.int32, device=gpu.device)
        self.weight, self.table = randn(HIDDEN), make_table(HEAD_DIM).to(gpu.device)
        self.embeddings = DenseWeight.of(randn(20, HIDDEN))
        self.hidden, self.residual, self.normed = (randn(TOKENS, HIDDEN) for _ in range(3))
        self.qkv = randn(TOKENS, HEADS + 2 * KV_HEADS, HEAD_DIM)
        self.pool = randn(2, 6, KV_HEADS * 4 * HEAD_DIM)
        self.host = gpu.pinned(randn(3, 2, KV_HEADS * 4 * HEAD_DIM))
        self.activated = randn(TOKENS, HIDDEN // 2)
        self.moves = torch.tensor([1, 6], dtype=torch.int32), torch.tensor([6, 2], dtype=torch.int32)

    def run(self) -> None:
        ops, eps = self.ops, 1e-6
        k_cache, v_cache = self.pool.view(2, 6, KV_HEADS, 4, HEAD_DIM)
        q, k, v = self.qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        ops.move_blocks(self.pool, self.host, *self.moves)
        ops.embedding(self.hidden, self.ids, self.embeddings)
        ops.fused_add_rms_norm(self.normed, self.hidden, self.residual, self.weight, eps)
        ops.layer_norm(self.normed, self.normed, self.weight, self.weight, eps)
        norms = (self.weight[:HEAD_DIM], self.weight[-HEAD_DIM:], eps)
        ops.kv_write(k, v, k_cache, v_cache, self.ids)
        ops.rotary_kv_write(q, k, v, self.ids, self.table, k_cache, v_cache, self.ids + 7, *norms)
        ops.silu_and_mul(self.activated, self.normed)
        ops.gelu(self.normed, self.normed, "tanh")

    def state(self) -> list[Tensor]:
        return [self.residual, self.normed, self.qkv, self.pool, self.host, self.activated]


@pytest.mark.gpu
def test_a_captured_step_replays_with_new_inputs(real_gpu: Gpu) -> None:
    eager, captured = (Step(real_gpu) for _ in range(2))
    for ours, theirs in zip(captured.state(), eager.state(), strict=True):
        ours.copy_(theirs)
    captured.weight.copy_(eager.weight)
    captured.embeddings.fill(eager.embeddings.data)
    # Kernels are loaded when they are first launched, which a capture does not allow.
    Step(real_gpu).run()
    graph = torch.cuda.CUDAGraph()
    before = [x.clone() for x in captured.state()]
    with torch.cuda.graph(graph):
        captured.run()
    # Capturing ran nothing.
    torch.cuda.synchronize()
    for ours, theirs in zip(captured.state(), before, strict=True):
        assert_same_bits(ours.cpu(), theirs.cpu())
    for ids in (torch.arange(TOKENS), torch.tensor([4, 2, 0, 3, 1])):
        for step in (eager, captured):
            step.ids.copy_(ids)
        eager.run()
        graph.replay()
        torch.cuda.synchronize()
        for ours, theirs in zip(captured.state(), eager.state(), strict=True):
            assert_same_bits(ours.cpu(), theirs.cpu())


@pytest.mark.gpu
def test_kernels_run_on_the_current_stream(real_gpu: Gpu) -> None:
    step = Step(real_gpu)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # Long enough that work on another stream would overtake it.
        torch.cuda._sleep(50_000_000)
        step.hidden.zero_()
        step.ops.embedding(step.hidden, step.ids, step.embeddings)
    stream.synchronize()
    assert_same_bits(step.hidden, step.embeddings.data[:TOKENS])


@pytest.mark.gpu
def test_attention_and_sampling_replay_in_a_graph(real_gpu: Gpu) -> None:
    attention = attention_cases(real_gpu.ops, real_gpu.device, [Work(2, 1, 2100, 4, 2, 64)])
    for case in [*attention, *sampling_cases(real_gpu.ops, real_gpu.device, [9001], [2])]:
        expected = case.ours().clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = case.ours()
        for _ in range(2):
            out.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert_same_bits(out, expected)

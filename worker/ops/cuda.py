"""The operations on tensors of a CUDA device, by the kernels of csrc/cuda; what differs from other devices:

* Activations may be float16, too.
* A call enqueues work on torch's current stream of the tensors' device and returns. It does not wait, and
  allocates at most from torch's allocator, so it can be captured in a CUDA graph.
* Ids live on the device, where no exception can be raised. A token id outside the vocabulary and a position
  outside the table give NaN, which the sampler reports as that row's error; a slot outside the cache is
  skipped, and so are rows and tokens that are not there when logits are penalised or edited. Asked for the
  logprob of a row or token that is not there, the kernels give NaN. A row of masks that is missing allows all
  tokens.
* A norm's row is at most 64 KiB long. `sample` takes vocabularies of up to 2^22 tokens, `top_logprobs` k of
  up to 1024.
* Places of experts are not checked: a row that is to go nowhere is left out, one from nowhere is NaN.
* rotary_kv_write leaves k as it is.
* move_blocks reads the moves at once, in the CPU's memory. Its host blocks are pinned, and are written when
  the stream comes to them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from splitserve.worker._native import load_library
from splitserve.worker.ops.codes.operations import CodedOps
from splitserve.worker.ops.dense_weight import DenseWeight
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.layers.experts import ExpertOps
from splitserve.worker.ops.layers.inputs import TorchInputOps
from splitserve.worker.ops.layers.latents import LatentOps
from splitserve.worker.ops.layers.wholes import WholeOps
from splitserve.worker.ops.products import MultipliedMatrix, Products

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.matrix import VocabularyPart


@cache
def cuda_ops() -> CudaOps:
    """Return the operations of the installed CUDA library, loaded once; no GPU is needed for that.

    Raises:
        ImportError: the library was not built, because there was no GPU or no nvcc.
    """
    return CudaOps(load_library("splitserve_cuda"))


class AttentionShape(NamedTuple):
    """What bounds the attention of a step.

    Attributes:
        tokens: rows of q, or more.
        heads: query heads.
        kv_heads: KV heads.
        max_seq_len: longest context.
    """

    tokens: int
    heads: int
    kv_heads: int
    max_seq_len: int


class CudaExpertOps(ExpertOps[MultipliedMatrix]):
    """The operations of experts in csrc/cuda; a row's bits do not depend on its batch.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
        products: those among which a weight chooses.
    """

    multiplies_mxfp4 = True

    def __init__(self, library: Any, products: Products) -> None:
        super().__init__(library)
        self._products = products

    def linear(
        self, out: Tensor, x: Tensor, weight: MultipliedMatrix, starts: Tensor, bias: Tensor | None = None
    ) -> None:
        """See ExpertOps.linear."""
        weight.multiply(self._products, out, x, bias, starts)


class CudaLatentOps(LatentOps[DenseWeight]):
    """The operations of latent attention in csrc/cuda, and torch's products."""

    def multiply_heads(self, out: Tensor, x: Tensor, weight: DenseWeight) -> None:
        """See LatentOps.multiply_heads; torch's product, whose order of summation may depend on T."""
        matrices = weight.data.view(x.shape[1], -1, x.shape[2])
        torch.bmm(x.transpose(0, 1), matrices.transpose(1, 2), out=out.transpose(0, 1))


class CudaOps(Kernels[MultipliedMatrix]):
    """The operations of one kernel library; stateless.

    Args:
        library: a tvm_ffi.Module that exports the kernels.

    Attributes:
        coded: those on weights of codes.
        max_coded_rows: see Products.
        latents: those of latent attention.
        whole: those of encoders' attention.
    """

    experts: CudaExpertOps

    # Measured on an H200: 64 rows take our kernel 1.3 to 2.7 times as long as torch's product of bfloat16,
    # 2,048 rows 5 to 7 times.
    max_coded_rows = 128

    def __init__(self, library: Any) -> None:
        super().__init__(library)
        self.coded = CodedOps(library)
        self.experts = CudaExpertOps(library, self)
        self.inputs = TorchInputOps()
        self.latents: LatentOps[DenseWeight] = CudaLatentOps(library)
        self.whole = WholeOps(library)
        self._expert_linear = library.expert_linear
        self._device_count = library.device_count
        self._latent_shared_bytes = library.latent_shared_bytes
        self._embedding = library.embedding
        self._attention_plan_size = library.attention_plan_size
        self._attention_shared_bytes = library.attention_shared_bytes
        self._shared_bytes_limit = library.shared_bytes_limit
        self._plan_attention = library.plan_attention
        self._paged_attention = library.paged_attention

    def device_count(self) -> int:
        """CUDA devices of this machine; 0 without a driver."""
        return int(self._device_count())

    def linear(self, out: Tensor, x: Tensor, weight: MultipliedMatrix, bias: Tensor | None = None) -> None:
        """See Kernels.linear; dense weights with torch's matrix product."""
        weight.multiply(self, out, x, bias)

    def expert_linear(
        self,
        out: Tensor,
        x: Tensor,
        weight: Tensor,
        scales: Tensor | None,
        starts: Tensor,
        bias: Tensor | None,
    ) -> None:
        """See Products.expert_linear."""
        self._expert_linear(out, x, weight, scales, starts, bias)

    def dense_linear(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Multiply with a row-major weight [N, K], by torch, whose order of summation may depend on T."""
        turned = weight.t()
        if out.dtype != x.dtype:
            self._multiply_wide(out, x, turned)
            if bias is not None:
                out.add_(bias)
        elif bias is not None:
            torch.addmm(bias, x, turned, out=out)
        else:
            torch.mm(x, turned, out=out)

    def _multiply_wide(self, out: Tensor, x: Tensor, turned: Tensor) -> None:
        """Write the product of 16-bit matrices in float32, which torch has on GPUs only."""
        torch.mm(x, turned, out_dtype=out.dtype, out=out)

    def embedding(
        self, out: Tensor, token_ids: Tensor, weight: MultipliedMatrix, part: VocabularyPart | None = None
    ) -> None:
        """See Kernels.embedding."""
        if part is None:
            weight.look_up(self, out, token_ids)
            return
        places = token_ids - part.first
        is_elsewhere = (places < 0) | (places >= weight.shape[0])
        weight.look_up(self, out, places.masked_fill_(is_elsewhere, 0))
        # Not by index: that would wait for the device to learn how many there are.
        out.masked_fill_(is_elsewhere[:, None], 0)

    def dense_embedding(self, out: Tensor, token_ids: Tensor, weight: Tensor) -> None:
        """Copy rows of a row-major weight [V, H]."""
        self._embedding(out, token_ids, weight)

    def attention_plan_size(
        self, tokens: int, requests: int, heads: int, kv_heads: int, head_dim: int, max_seq_len: int
    ) -> int:
        """Elements of a plan for at most so many tokens and requests, of at most max_seq_len tokens each."""
        return int(self._attention_plan_size(tokens, requests, heads, kv_heads, head_dim, max_seq_len))

    def attention_shared_bytes(self, head_dim: int) -> int:
        """Shared memory that a thread block of paged_attention takes in bfloat16 and float16."""
        return int(self._attention_shared_bytes(head_dim))

    def latent_shared_bytes(self) -> int:
        """Shared memory that a thread block of latent attention takes in bfloat16 and float16."""
        return int(self._latent_shared_bytes())

    def shared_bytes_limit(self, device: int) -> int:
        """Shared memory that a thread block may have on the device of this number."""
        return int(self._shared_bytes_limit(device))

    def plan_attention(
        self,
        plan: Tensor,
        partials: Tensor,
        cu_seqlens_q: Tensor,
        seq_lens: Tensor,
        shape: AttentionShape,
        sliding_window: int = 0,
    ) -> None:
        """Divide a step's attention among the device's processors, once for all layers with the same window.

        A request with few query rows over a long context is split at multiples of 1024 positions, as long as
        its partial results fit into `partials`; that changes the speed and no bit of the results.

        Args:
            plan: int32 [attention_plan_size(...)], overwritten.
            partials: float32 [any, 4 + D], room for partial results: per segment one row for each query row
                of the requests that split; contiguous.
            cu_seqlens_q: int32 [R + 1], as for paged_attention.
            seq_lens: int32 [R]; a request with an impossible length is left out.
            shape: bounds of the step.
            sliding_window: as for paged_attention.
        """
        self._plan_attention(
            plan,
            partials,
            cu_seqlens_q,
            seq_lens,
            shape.tokens,
            shape.heads,
            shape.kv_heads,
            shape.max_seq_len,
            sliding_window,
        )

    def paged_attention(
        self,
        out: Tensor,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        cu_seqlens_q: Tensor,
        seq_lens: Tensor,
        scale: float,
        sliding_window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        *,
        plan: Tensor,
        partials: Tensor,
    ) -> None:
        """See worker.ops.cpu.CpuOps.paged_attention, whose arguments come first.

        The caches have the same strides; their rows begin at multiples of 16 bytes, those of q and out at
        multiples of 4. A block outside the cache reads as zeros. `plan` is one by plan_attention for these
        lengths, heads and window, and `partials` the tensor that it was made with, which is overwritten. One
        stream at a time may use them.
        """
        self._paged_attention(
            out,
            q,
            k_cache,
            v_cache,
            block_tables,
            cu_seqlens_q,
            seq_lens,
            scale,
            sliding_window,
            softcap,
            sinks,
            plan,
            partials,
        )

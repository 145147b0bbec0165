"""The operations of the CPU, `ops`, and how many threads and which instructions they use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from splitserve.worker._native import load_library
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.layers.activated import CpuActivatedOps
from splitserve.worker.ops.layers.experts import ExpertOps
from splitserve.worker.ops.layers.inputs import CpuInputOps
from splitserve.worker.ops.layers.latents import LatentOps
from splitserve.worker.ops.layers.wholes import WholeOps
from splitserve.worker.ops.packed_weight import PackedWeight

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.matrix import VocabularyPart


class CpuOps(Kernels[PackedWeight]):
    """The operations of csrc/cpu; a call returns when it is done.

    Args:
        library: a tvm_ffi.Module that exports the kernels.

    Attributes:
        latents: those of latent attention.
        whole: those of encoders' attention.
    """

    experts: CpuExpertOps
    activated: CpuActivatedOps

    def __init__(self, library: Any) -> None:
        super().__init__(library, has_paired_adapters=True)
        # Better an error now than an instruction that this CPU does not know.
        library.cpu_isas()
        self._library = library
        self.latents = CpuLatentOps(library)
        self.whole = WholeOps(library)
        self.experts = CpuExpertOps(library)
        self.inputs = CpuInputOps(library)
        self.activated = CpuActivatedOps(library)
        self._linear = library.linear
        self._embedding = library.embedding
        self._paged_attention = library.paged_attention
        self._elementwise = library.elementwise

    def cpu_isa(self) -> str:
        """Instruction set in use, one of ISAS of the worker's settings but "auto"."""
        return str(self._library.cpu_isa())

    def best_cpu_isa(self) -> str:
        """The most capable instruction set of this CPU and this build, in use unless set_isa() chose."""
        return self.cpu_isas()[-1]

    def cpu_isas(self) -> list[str]:
        """Instruction sets that this CPU and this build have: all, or those of the machine it was built on.

        Raises:
            RuntimeError: the library was built for another machine's CPU alone.
        """
        return [str(name) for name in self._library.cpu_isas()]

    def set_isa(self, name: str) -> None:
        """Use the kernels of one instruction set, process-wide; ValueError if this CPU or build lacks it."""
        self._library.set_isa(name)

    def uses_vnni(self) -> bool:
        """Whether kernels of avx2 or avx512, if in use, multiply integers by VNNI: where the CPU has it."""
        return bool(self._library.uses_vnni())

    def set_uses_vnni(self, is_used: bool) -> None:
        """Have them do so where the CPU has it, or not at all, process-wide, with the same bits."""
        self._library.set_uses_vnni(is_used)

    def multiplies_floats(self) -> bool:
        """Whether kernels of avx512_bf16 multiply floats in place of bfloat16, as they do on Intel's CPUs."""
        return bool(self._library.multiplies_floats())

    def set_multiplies_floats(self, is_used: bool) -> None:
        """Have them do so or not, process-wide, with the same bits; ValueError if this CPU gains nothing."""
        self._library.set_multiplies_floats(is_used)

    def set_num_threads(self, num: int) -> None:
        """Let a kernel use 1 to 1024 threads, process-wide; until set, all CPUs this process may run on."""
        self._library.set_num_threads(num)

    def num_threads(self) -> int:
        """Threads a kernel may use."""
        return int(self._library.get_num_threads())

    def multiply_peak(self, x: Tensor, rounds: int) -> int:
        """Multiply out of registers alone on all threads, for a ceiling.

        Args:
            x: [32] numbers to multiply with each other, bfloat16 or float32 as in the products of linear.
            rounds: 1 to 2^32, of 32,768 products per thread.

        Returns:
            Operations, two per product.
        """
        return int(self._library.multiply_peak(x, rounds))

    def linear(self, out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> None:
        """See Kernels.linear; integers are multiplied exactly, and their scales with the sums."""
        cols, depth = weight.shape
        self._linear(out, x, weight.data, weight.scales, cols, depth, bias, None)

    def embedding(
        self, out: Tensor, token_ids: Tensor, weight: PackedWeight, part: VocabularyPart | None = None
    ) -> None:
        """See Kernels.embedding; the weight is not in int4."""
        num_rows, hidden = weight.shape
        first, vocab = part or (0, num_rows)
        self._embedding(out, token_ids, weight.data, weight.scales, num_rows, hidden, first, vocab)

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
    ) -> None:
        """Causal attention of prefill, chunk and decode rows over the paged cache.

        Args:
            out: [T, Hq, D], D a multiple of 8 up to 256.
            q: like out.
            k_cache: as kv_write leaves it; this step's keys are already in it.
            v_cache: likewise.
            block_tables: int32 [R, max_blocks].
            cu_seqlens_q: int32 [R + 1]: request r owns rows cu_seqlens_q[r] to cu_seqlens_q[r + 1] of q.
            seq_lens: int32 [R]: context length with this step's tokens; the rows of q are the last of it.
            scale: multiplies the scores.
            sliding_window: a token sees this many positions up to and including its own; 0: all.
            softcap: scores become softcap * tanh(score / softcap); 0: off.
            sinks: [Hq], like q: the score of one more position, which has no value; None for none.
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
        )

    def elementwise(
        self,
        kind: Literal["copy", "neg", "add", "sub", "mul"],
        out: Tensor,
        x: Tensor,
        y: Tensor | None = None,
    ) -> None:
        """Compute out = x, -x, x + y, x - y or x * y, in float32 and rounded once, with the bits of torch.

        Args:
            kind: what is computed.
            out: of at most 5 dimensions and any layout, bfloat16 or float32.
            x: of any layout; repeated along dimensions that it lacks or in which its size is 1.
            y: likewise, dtype of x; None for "copy" and "neg".
        """
        self._elementwise(kind, out, x, y)


class CpuLatentOps(LatentOps[PackedWeight]):
    """The operations of latent attention in csrc/cpu.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
    """

    def __init__(self, library: Any) -> None:
        super().__init__(library)
        self._head_linear = library.head_linear

    def multiply_heads(self, out: Tensor, x: Tensor, weight: PackedWeight) -> None:
        """See LatentOps.multiply_heads."""
        rows, depth = weight.shape
        self._head_linear(out, x, weight.data, rows // weight.num_experts, depth)


class CpuExpertOps(ExpertOps[PackedWeight]):
    """The operations of experts in csrc/cpu.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
    """

    multiplies_mxfp4 = True

    def __init__(self, library: Any) -> None:
        super().__init__(library)
        self._linear = library.expert_linear

    def linear(
        self, out: Tensor, x: Tensor, weight: PackedWeight, starts: Tensor, bias: Tensor | None = None
    ) -> None:
        """See ExpertOps.linear."""
        rows, depth = weight.shape
        self._linear(out, x, weight.data, weight.scales, starts, rows // weight.num_experts, depth, bias)


ops = CpuOps(load_library("splitserve_cpu"))

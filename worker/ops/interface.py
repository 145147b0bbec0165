"""The operations of a step, as layers, attention backends, sampler and host blocks call them on any device.

T: tokens of the batch, H: hidden size, D: head size, Hq and Hkv: query and KV heads, R: requests,
V: vocabulary. Operations work in place or into tensors the caller owns. Activations are bfloat16 or float32,
on a GPU also float16, and all of one call have the same dtype. The last dimension of every tensor is
contiguous; the others may have any stride, so a slice of a fused QKV buffer needs no copy. Every output row
depends on its own inputs alone: the same bits in any batch, at any place in it, with any number of threads.
Attention is each device's own, since its arguments depend on how a device divides the work.

Wrong ranks, shapes, devices and ids raise ValueError, wrong dtypes TypeError; both name the argument. On a
GPU ids raise nothing: worker.ops.cuda says what happens instead, and what else differs there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Literal

from splitserve.worker.ops.layers.activated import ActivatedOps
from splitserve.worker.ops.layers.experts import ExpertOps
from splitserve.worker.ops.layers.inputs import InputOps
from splitserve.worker.ops.layers.lora import LoraOps
from splitserve.worker.ops.matrix import MatrixT_contra, VocabularyPart
from splitserve.worker.ops.sampling import SamplingOps

if TYPE_CHECKING:
    from torch import Tensor


class Kernels(ABC, Generic[MatrixT_contra]):
    """The operations that devices have in common; stateless.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
        has_paired_adapters: whether the matrices of adapters lie in pairs, see LoraOps.

    Attributes:
        sampling: those that turn logits into tokens.
        experts: those of sparse layers.
        lora, inputs: those of adapters, and of weights whose inputs are out of order.
        activated: products that are activated on their way; None on a device without.
    """

    experts: ExpertOps[MatrixT_contra]
    inputs: InputOps
    activated: ActivatedOps[MatrixT_contra] | None = None

    def __init__(self, library: Any, *, has_paired_adapters: bool = False) -> None:
        self.sampling = SamplingOps(library)
        self.lora = LoraOps(library, has_pairs=has_paired_adapters)
        self._rms_norm = library.rms_norm
        self._fused_add_rms_norm = library.fused_add_rms_norm
        self._layer_norm = library.layer_norm
        self._fused_add_layer_norm = library.fused_add_layer_norm
        self._silu_and_mul = library.silu_and_mul
        self._gelu_and_mul = library.gelu_and_mul
        self._gelu = library.gelu
        self._add = library.add
        self._scale = library.scale
        self._soft_cap = library.soft_cap
        self._sum_parts = library.sum_parts
        self._rotary_kv_write = library.rotary_kv_write
        self._kv_write = library.kv_write
        self._move_blocks = library.move_blocks

    def rms_norm(self, out: Tensor, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> None:
        """Write x / sqrt(mean(x^2) + eps) * (weight + offset) to out, over the last dimension.

        Args:
            out: like x; may be x.
            x: [T, H].
            weight: [H].
            eps: added to the mean square.
            offset: added to the weights in float32.
        """
        self._rms_norm(out, x, weight, eps, offset)

    def fused_add_rms_norm(
        self, out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> None:
        """Add x to residual in place, rounded to its dtype, then out = rms_norm(residual).

        Args:
            out: [T, H]; out may be x.
            x: like out.
            residual: like out.
            weight: [H].
            eps: added to the mean square.
            offset: as for rms_norm.
        """
        self._fused_add_rms_norm(out, x, residual, weight, eps, offset)

    def layer_norm(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> None:
        """Write (x - mean(x)) / sqrt(var(x) + eps) * weight + bias to out, over the last dimension.

        Args:
            out: like x; may be x.
            x: [T, H].
            weight: [H].
            bias: like weight.
            eps: added to the variance.
        """
        self._layer_norm(out, x, weight, bias, eps)

    def fused_add_layer_norm(
        self, out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> None:
        """Add x to residual in place, rounded to its dtype, then out = layer_norm(residual).

        Args:
            out: [T, H]; out may be x.
            x: like out.
            residual: like out.
            weight: [H].
            bias: like weight.
            eps: added to the variance.
        """
        self._fused_add_layer_norm(out, x, residual, weight, bias, eps)

    def silu_and_mul(self, out: Tensor, x: Tensor) -> None:
        """Write silu(gate) * up to out.

        Args:
            out: [T, I].
            x: [T, 2 * I]: gate, then up.
        """
        self._silu_and_mul(out, x)

    def gelu_and_mul(self, out: Tensor, x: Tensor, approximate: Literal["none", "tanh"] = "tanh") -> None:
        """Write gelu(gate) * up to out.

        Args:
            out: [T, I].
            x: [T, 2 * I]: gate, then up.
            approximate: as in torch.nn.functional.gelu.
        """
        self._gelu_and_mul(out, x, approximate)

    def gelu(self, out: Tensor, x: Tensor, approximate: Literal["none", "tanh"] = "none") -> None:
        """Gaussian error linear unit, exact or in its tanh form.

        Args:
            out: [T, I]; out may be x.
            x: like out.
            approximate: as in torch.nn.functional.gelu.
        """
        self._gelu(out, x, approximate)

    def add(self, out: Tensor, x: Tensor, y: Tensor) -> None:
        """Write x + y to out.

        Args:
            out: [T, H]; out may be x or y.
            x: like out.
            y: like out; it may be one row that is expanded to T.
        """
        self._add(out, x, y)

    def scale(self, out: Tensor, x: Tensor, factor: float) -> None:
        """Write x * factor to out.

        Args:
            out: [T, H]; out may be x.
            x: like out.
            factor: above 0.
        """
        self._scale(out, x, factor)

    def soft_cap(self, out: Tensor, x: Tensor, cap: float) -> None:
        """Write cap * tanh(x / cap) to out, which lies between -cap and cap.

        Args:
            out: [T, V]; out may be x.
            x: like out.
            cap: above 0.
        """
        self._soft_cap(out, x, cap)

    def sum_parts(self, out: Tensor, parts: Tensor, bias: Tensor | None = None, first: int = 0) -> None:
        """Write the sum of several tensors' elements, added in order in float32, bias last, and rounded once.

        Args:
            out: [M], elements first to first + M of a matrix [T, N] whose rows follow one another.
            parts: [P, M], float32 or like out, P >= 1.
            bias: [N], added to each row of that matrix; None for none.
            first: 0 or more.
        """
        self._sum_parts(out, parts, bias, first)

    @abstractmethod
    def linear(self, out: Tensor, x: Tensor, weight: MatrixT_contra, bias: Tensor | None = None) -> None:
        """Write x @ weight.T + bias to out, accumulated in float32 in an order that depends on K alone.

        Args:
            out: [T, N], dtype of x or float32.
            x: [T, K], dtype of the weight.
            weight: [N, K].
            bias: [N] or None, dtype of x.
        """

    @abstractmethod
    def embedding(
        self, out: Tensor, token_ids: Tensor, weight: MatrixT_contra, part: VocabularyPart | None = None
    ) -> None:
        """Copy rows: out[t] = weight[token_ids[t]].

        Args:
            out: [T, H], dtype of the activations that the weight multiplies.
            token_ids: int32 or int64 [T].
            weight: [V, H]; [V', H] if it holds a part of the vocabulary.
            part: which rows the weight holds; tokens of others get zeros. None for all.
        """

    def rotary_kv_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
        norm_offset: float = 0.0,
    ) -> None:
        """Normalise and rotate queries and keys, and write keys and values into the cache.

        Element i of a head pairs with element i + rot_dim / 2 (NeoX, Llama). Norms are those of rms_norm,
        over each head, and rounded before the rotation.

        Args:
            q: [T, Hq, D], in place; also of tokens whose slot is negative.
            k: [T, Hkv, D]; its contents are undefined afterwards.
            v: like k, not changed.
            positions: int32 or int64 [T], each below max_pos.
            cos_sin: float32 [max_pos, rot_dim], rot_dim <= D: cosines, then sines, of the rot_dim / 2 angles.
            k_cache: as for kv_write.
            v_cache: like k_cache.
            slot_mapping: as for kv_write.
            q_norm: [D], weights of the queries' norm; None: they have none.
            k_norm: [D], of the keys' norm, or None.
            eps: added to the mean squares.
            norm_offset: added to the weights in float32.
        """
        places = (k_cache, v_cache, slot_mapping)
        self._rotary_kv_write(q, k, v, positions, cos_sin, *places, q_norm, k_norm, eps, norm_offset)

    def kv_write(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """Write this step's keys and values into the paged cache.

        Args:
            k: [T, Hkv, D].
            v: like k.
            k_cache: [num_blocks, Hkv, block_size, D], the last two dimensions contiguous on the CPU, where
                keys lie within them as [D / P, block_size, P]: P elements are 4 bytes, block_size and D
                multiples of P. On a GPU each row of D keys is in one piece. On a CPU, under bfloat16, it may
                also hold codes, with P = 2: of E4M3, as uint8; or int8 [num_blocks, Hkv, block_size, D + 2],
                sign and magnitude, of which a row ends with the two bytes of its scale in bfloat16.
            v_cache: like k_cache; on the CPU values lie as [block_size / P, D, P].
            slot_mapping: int32 or int64 [T], block * block_size + offset; a negative slot is skipped.
        """
        self._kv_write(k, v, k_cache, v_cache, slot_mapping)

    def move_blocks(self, pool: Tensor, host: Tensor, moves_from: Tensor, moves_to: Tensor) -> None:
        """Copy whole blocks between places, one move after the other: a place may be written and read again.

        Places 0 to num_blocks - 1 are the pool's blocks, num_blocks + i is host block i. All places are
        checked before anything is copied.

        Args:
            pool: [P, num_blocks, E]: block b consists of P pieces of E elements, pool[:, b].
            host: [num_host_blocks, P, E], not a part of pool; num_host_blocks may be 0.
            moves_from: int32 or int64 [M], places that are read.
            moves_to: like moves_from, places that are written.
        """
        self._move_blocks(pool, host, moves_from, moves_to)

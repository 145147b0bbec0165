"""How the layers of a decoder differ from one family to another."""

from __future__ import annotations

from typing import Literal

import msgspec


class NormTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Norms of the residual stream, and where a layer has them.

    Attributes:
        kind: RMS norms, or layer norms.
        has_bias: layer norms have one.
        offset: added to their weights, and to those of norms of query and key heads.
        before_attention, before_mlp: of what attention and MLP read: checkpoint names within a layer; "":
            there is none, and they read the residual itself.
        after_attention, after_mlp: of what they add to the residual, likewise.
    """

    kind: Literal["rms", "layer"] = "rms"
    has_bias: bool = False
    offset: float = 0.0
    before_attention: str = "input_layernorm"
    after_attention: str = ""
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = ""


class AttentionTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Projections of the attention, and what is done to queries and keys.

    Attributes:
        inputs: checkpoint names of the query, key and value projection; one name if a tensor holds all three.
        qkv_bias, output_bias: query, key and value projections have biases; the attention's output has one.
        qk_norm: RMS norm of queries and keys before the rotation: over each head, over the whole row of
            heads, or none.
        is_rotary_interleaved: elements of a head turn with their neighbours, 0 with 1, and not with those
            half a rotation away.
        has_sinks: in its softmax each head has a position more, with a score of its own and no value.
        score_cap: scores are capped softly at this; 0: they are not.
    """

    inputs: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "head", "row"] = "none"
    is_rotary_interleaved: bool = False
    has_sinks: bool = False
    score_cap: float = 0.0


class MlpTraits(msgspec.Struct, frozen=True, kw_only=True):
    """The feed-forward half of a layer.

    Attributes:
        is_gated: it multiplies the activated gate with another projection.
        inner: checkpoint names of gate and up projection; one name if a tensor holds both, or without a gate.
        outer: of the projection back.
        bias: all its projections have one.
    """

    is_gated: bool = True
    inner: tuple[str, ...] = ("gate_proj", "up_proj")
    outer: str = "down_proj"
    bias: bool = False


class ExpertTraits(msgspec.Struct, frozen=True, kw_only=True):
    """How the checkpoint names the parts of a sparse layer; sizes and the rule of choice are in ExpertConfig.

    Attributes:
        module: the MLP of a sparse layer, within the layer.
        router: within `module`.
        inner: tensors of the projections into the experts' inner width, within `module`: gate before up, one
            if it holds both. With {} in the place of its number each expert has its own; otherwise the
            experts are stacked in one.
        outer: of the projection back.
        has_pairs: gate and up of a unit are neighbours; otherwise all gates come first. If they are in two
            stacked tensors, the loader makes them neighbours.
        is_transposed: stacked tensors are [E, in, out], not [E, out, in].
        bias: the router has a bias, and so have the projections, in tensors of the same names and "_bias".
        has_blocks: MXFP4 is a type of blocks in one tensor, not two tensors of codes and scales.
        shared: the expert that all tokens pass, within the layer; "" for none.
        shared_inner, shared_outer: its projections, likewise.
        shared_gate: its gate, within `module`; "": its output is added as it is.
    """

    module: str = "mlp"
    router: str = "gate"
    inner: tuple[str, ...] = ("experts.{}.gate_proj.weight", "experts.{}.up_proj.weight")
    outer: str = "experts.{}.down_proj.weight"
    has_pairs: bool = False
    is_transposed: bool = False
    bias: bool = False
    has_blocks: bool = False
    shared: str = ""
    shared_inner: tuple[str, ...] = ("gate_proj", "up_proj")
    shared_outer: str = "down_proj"
    shared_gate: str = ""


class Multipliers(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers above 0 that activations are multiplied with.

    Attributes:
        embedding: of the embedding's output.
        is_embedding_rounded: the former is rounded to the dtype of the weights first.
        residual: of the attention's and the MLP's output before it is added to the residual.
        logits: of the output head's.
    """

    embedding: float = 1.0
    is_embedding_rounded: bool = False
    residual: float = 1.0
    logits: float = 1.0


class DecoderTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker chooses the layers of the shared decoder by; the defaults are Llama's.

    Attributes:
        mlp: of layers that are not sparse.
        experts: of those that are.
        is_parallel: attention and MLP read the same norm, that before attention, and both are added.
        logits_cap: logits x become logits_cap * tanh(x / logits_cap); 0: they stay.
    """

    norms: NormTraits = NormTraits()
    attention: AttentionTraits = AttentionTraits()
    mlp: MlpTraits = MlpTraits()
    experts: ExpertTraits = ExpertTraits()
    multipliers: Multipliers = Multipliers()
    is_parallel: bool = False
    logits_cap: float = 0.0

"""What a model looks like in numbers: everything that config.json decides about its layers, range-checked."""

from __future__ import annotations

import msgspec

from splitserve.engine_core.checkpoint.config.classifier import Classifier
from splitserve.engine_core.checkpoint.config.encoders.encoder_traits import EncoderTraits
from splitserve.engine_core.checkpoint.config.rope_config import RopeConfig
from splitserve.engine_core.checkpoint.config.traits import DecoderTraits
from splitserve.engine_core.checkpoint.quantization.schemes import Quantization
from splitserve.engine_core.errors import ConfigError


class ClampedSwiglu(msgspec.Struct, frozen=True, kw_only=True):
    """An activation: min(gate, limit) * sigmoid(alpha * min(gate, limit)) * (up within +-limit, plus 1).

    Attributes:
        alpha, limit: above 0.
    """

    alpha: float
    limit: float


class ExpertGroups(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of experts in which the best groups come first, then the best experts of these.

    Attributes:
        num_groups: of as many experts each.
        num_chosen: groups that a token's experts are chosen from.
        is_sigmoid: experts are judged by the sigmoids of their logits, not by the softmax.
        counts_two: a group is judged by the sum of its two best experts, not by the best one.
        has_bias: the checkpoint has a number per expert that is added for the choice, not to the weights.
        scaling: the weights are multiplied with it.
    """

    num_groups: int = 1
    num_chosen: int = 1
    is_sigmoid: bool = False
    counts_two: bool = False
    has_bias: bool = False
    scaling: float = 1.0


class ExpertConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The layers in which a router chooses a few of many MLPs for each token.

    Attributes:
        num_experts: E, of each sparse layer.
        num_chosen: K, experts per token.
        inner_size: inner width of an expert.
        shared_size: inner width of the expert that all tokens pass; 0 for none.
        adds_up: the weights of a token's chosen experts are divided by their sum, which is the softmax of
            their logits alone; otherwise they are those of the softmax over all experts.
        swiglu: the experts' activation; None for the MLP's.
        groups: how they are chosen, and what becomes of their weights; None: the largest logits win, and the
            weights are those of the softmax.
        is_mxfp4: the checkpoint holds their matrices in MXFP4, with which they are multiplied.
        is_sparse: per layer, whether it has experts; others have an MLP.
    """

    num_experts: int
    num_chosen: int
    inner_size: int
    shared_size: int = 0
    adds_up: bool = True
    swiglu: ClampedSwiglu | None = None
    groups: ExpertGroups | None = None
    is_mxfp4: bool = False
    is_sparse: tuple[bool, ...] = ()


class LatentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Attention in which all heads' keys and values are made of one latent per token, and a rotary key.

    Attributes:
        query_rank: inner width of the queries' projection; 0: it is one matrix.
        size: of the latent.
        rotary_dim: of the rotary key, and of the end of each query that it is multiplied with.
        plain_dim: of the rest of a query, and of the keys that belong to it.
        value_dim: of a head's value.
        norm_eps: epsilon of the norms of the latent and of the inner queries.
    """

    query_rank: int
    size: int
    rotary_dim: int
    plain_dim: int
    value_dim: int
    norm_eps: float

    @property
    def cached_size(self) -> int:
        """Elements that the cache holds of a token in each layer."""
        return self.size + self.rotary_dim

    @property
    def query_dim(self) -> int:
        """Elements of a query."""
        return self.plain_dim + self.rotary_dim


class DraftHead(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a layer a head that drafts: it reads what a model has computed of the tokens before.

    Attributes:
        layer: name of its decoder layer in the checkpoint.
        read_layers: of the model, in front of which the residual stream is read; one more than the last: at
            the end.
        read_size: width of that stream.
        token_ids: the model's ids of the tokens that the head knows, in its order; () for all.
        has_own_embedding, has_own_head: otherwise those of the model serve.
        has_fc_bias: of the layer that what is read goes through first.
        goes_on_with_norm: the residual stream begins with the norm of what is read.
    """

    layer: str
    read_layers: tuple[int, ...]
    read_size: int
    token_ids: tuple[int, ...] = ()
    has_own_embedding: bool = False
    has_own_head: bool = False
    has_fc_bias: bool = False
    goes_on_with_norm: bool = False


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder or an encoder; the worker builds its layers from this alone.

    Attributes:
        path: checkpoint directory.
        architecture: e.g. "LlamaForCausalLM".
        family: which stack of layers the worker builds, a key of its FAMILIES: "decoder", "gpt2", "encoder",
            "eagle3" or "mtp".
        dtype: of the checkpoint, "float32", "bfloat16" or "float16"; "" if it is not named and there are no
            weights.
        vocab_size: rows of the embedding.
        hidden_size, intermediate_size: widths of the residual stream and of the MLP.
        num_layers, num_heads, num_kv_heads, head_dim: num_heads is a multiple of num_kv_heads; with a latent
            there is one KV head, and head_dim is its cached_size.
        max_position_embeddings: positions the checkpoint was made for.
        max_model_len: longest sequence served, in tokens; rotary tables have this many rows.
        norm_eps: epsilon of every norm.
        activation: "silu", "gelu" (exact) or "gelu_tanh".
        tie_word_embeddings: the output head shares the embedding's weight.
        named_eos_token_ids: EOS ids named by the checkpoint; some may be outside a small vocabulary.
        sliding_windows: per layer, how many tokens a query sees, including itself; 0 for all.
        attention_scales: per layer, the factor of the dot product of query and key.
        ropes: per layer, its rotary embedding, None for a layer without; () for learned positions.
        latent: of its attention, None for one with keys and values of each KV head.
        experts: of the sparse layers, None if there are none.
        traits: what else distinguishes the layers of the shared decoder.
        encoder: what distinguishes those of an encoder, whose tokens see those behind them; None for a
            decoder.
        draft_head: what makes it a head that drafts for another model; None if it is a model.
        classifier: a head that gives labels numbers, in the place of one for text; None if it has none.
        num_prediction_layers: layers behind the last one that a checkpoint may hold, which predict tokens
            farther ahead and are not used.
        quantization: how its matrices are stored; None if they are not quantized.
        has_custom_code: config.json names Python code of the checkpoint's, which is never executed.
    """

    path: str
    architecture: str
    family: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    max_model_len: int
    norm_eps: float
    activation: str
    tie_word_embeddings: bool
    named_eos_token_ids: tuple[int, ...]
    sliding_windows: tuple[int, ...]
    attention_scales: tuple[float, ...]
    ropes: tuple[RopeConfig | None, ...] = ()
    latent: LatentConfig | None = None
    experts: ExpertConfig | None = None
    traits: DecoderTraits = DecoderTraits()
    encoder: EncoderTraits | None = None
    draft_head: DraftHead | None = None
    classifier: Classifier | None = None
    num_prediction_layers: int = 0
    quantization: Quantization | None = None
    has_custom_code: bool = False

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence."""
        return tuple(i for i in self.named_eos_token_ids if 0 <= i < self.vocab_size)

    @property
    def sliding_window(self) -> int:
        """The widest window in tokens if all layers have one, otherwise 0: some layer needs all tokens."""
        return 0 if 0 in self.sliding_windows else max(self.sliding_windows, default=0)

    def limited_to(self, max_model_len: int) -> ModelConfig:
        """Return this config with a shorter context; 0 keeps the checkpoint's.

        Raises:
            ConfigError: the checkpoint does not support so long a context.
        """
        if not 0 <= max_model_len <= self.max_model_len:
            raise ConfigError(
                f"--max-model-len {max_model_len} exceeds the limit of {self.path}, {self.max_model_len}"
            )
        return msgspec.structs.replace(self, max_model_len=max_model_len or self.max_model_len)

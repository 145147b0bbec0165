"""Any decoder of the transformers library as a Model: its modules, our kernels, our KV cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.generic.attention import (
    AttentionHook,
    LayerAttention,
    StepAttention,
    UnsupportedAttentionError,
)
from splitserve.worker.generic.names import CheckpointNames
from splitserve.worker.generic.native_ops import LargeOperations
from splitserve.worker.generic.recorded_step import record
from splitserve.worker.generic.replacement import Replacement
from splitserve.worker.generic.rotation import StepRotation
from splitserve.worker.generic.skeleton import compute_buffers, make_skeleton, refusal
from splitserve.worker.generic.tracing import Launcher, StepTrace
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.adapters.adapters import Adapters
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.decode import Recording
from splitserve.worker.weights.tied_head import has_own_head

_TRIAL_TOKENS = 4
# Their operations between the kernels take longer than looking for those that are worth all threads.
_MANY_ROWS = 64
# Taking rows out of tensors and putting them back is worth it below this part of a step.
_FEW = 4
_numbers = itertools.count()


class TransformersModel:
    """A causal language model of the transformers library; see models.base.Model.

    Args:
        ctx: of a single rank.
        config: of the checkpoint.

    Attributes:
        base: the library's model without its head.
        hook: the attention that its layers call.
        has_logits: it has an output head.
        sliding_windows: per layer, how many tokens a query sees, including itself; 0 for all.

    Raises:
        ModelLoadError: the library does not know it, or one of its layers asks for what is not computed here.
        ConfigError: more than one rank, or a device other than the CPU.
    """

    is_recordable = True
    adapters: Adapters | None = None

    def __init__(self, ctx: LayerContext, config: ModelConfig) -> None:
        _check_placement(ctx, config)
        # Where torch cuts a tensor for its threads, it computes the ends of the pieces in another way, so an
        # element's last bit would depend on the batch. What is left to it is small beside the kernels' work.
        torch.set_num_threads(1)
        dtype = ctx.workspace.dtype
        name = f"splitserve_{next(_numbers)}"
        self.hook = AttentionHook(name, config.max_model_len)
        model = make_skeleton(config, dtype, name)
        # The base model's own checkpoints omit its name, and tied heads may be there all the same.
        ctx.plan.optional_prefix = f"{model.base_model_prefix}."
        self._launch = launch = Launcher()
        replacement = Replacement(ctx, model, CheckpointNames(config, model), launch)
        # Where no logits are wanted, the config is said to be tied.
        self.has_logits = not config.tie_word_embeddings
        replacement.replace_vocabulary(
            has_head=self.has_logits,
            is_tied=_is_tied(config, model),
        )
        replacement.replace_layers()
        layers = _try_out(config, model, self.hook)
        compute_buffers(model)
        self._steps = StepAttention(ctx.backend, layers, launch, dtype)
        self.hook.serve(self._steps)
        self._rotation = StepRotation(model, launch)
        self._hidden = _GivenHidden()
        self.base = model.base_model
        setattr(model, model.base_model_prefix, self._hidden)
        self._with_head = model
        self.num_layers = len(layers)
        self.sliding_windows = tuple(layer.scores.sliding_window for layer in layers)
        self.num_kv_heads, self.head_dim = layers[0].num_kv_heads, layers[0].head_dim
        self.num_params = ctx.plan.num_params
        self.workspace = ctx.workspace

    def forward(
        self,
        token_ids: torch.Tensor,
        meta: AttentionMetadata,
        kv_caches: Iterable[KVCache],
        outputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return final hidden states [S, H]; see models.base.Model.forward."""
        wanted = outputs if outputs is not None and _FEW * len(outputs) <= len(token_ids) else None
        compute = partial(self._compute, token_ids, meta, list(kv_caches), wanted)
        hidden = self._run("final_hidden", compute, len(token_ids))
        return hidden if outputs is None else hidden[outputs]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return fp32 logits [S, V]; see models.base.Model.compute_logits."""
        return self._run("logits", partial(self._compute_logits, hidden), len(hidden))

    def _run(self, role: str, compute: Callable[[], torch.Tensor], num_rows: int) -> torch.Tensor:
        """Return what a part of a step computes; if steps are recorded, in the buffer of that role."""
        recording = Recording.current()
        if recording is None:
            is_shared = num_rows >= _MANY_ROWS and ops.num_threads() > 1
            with LargeOperations() if is_shared else nullcontext():
                return compute()
        with recording.paused(), StepTrace(self._launch) as trace:
            made = compute()
        return record(recording, trace.nodes, made, role, self.workspace)

    def _compute(
        self,
        token_ids: torch.Tensor,
        meta: AttentionMetadata,
        kv_caches: list[KVCache],
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        # A trace has every tensor whole.
        self._steps.begin(meta, kv_caches, wanted if self._launch.trace is None else None)
        positions = meta.positions.long().unsqueeze(0)
        with self._rotation.step():
            made = self.base(
                input_ids=token_ids.long().unsqueeze(0),
                position_ids=positions,
                # Of one sequence, so that the library does not look for several in the positions.
                attention_mask=torch.ones(positions.shape, dtype=torch.bool),
                use_cache=False,
            )
        hidden: torch.Tensor = made.last_hidden_state[0]
        return hidden

    def _compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self._launch.narrow(None, 0)
        self._hidden.states = hidden.unsqueeze(0)
        # With what the architecture does to logits behind its head, such as scaling and capping them.
        logits: torch.Tensor = self._with_head(inputs_embeds=self._hidden.states, use_cache=False).logits[0]
        return logits.float().contiguous()


class _GivenHidden(nn.Module):
    """In the place of a model without its head: returns the hidden states that it was given."""

    states: torch.Tensor

    @property
    def decoder(self) -> _GivenHidden:
        """Some heads stand on this part of the model."""
        return self

    def forward(self, *args: object, **kwargs: object) -> _Outputs:
        return _Outputs(self.states)


class _Outputs:
    """What a model without its head returns of a step: hidden states [1, S, H], and None for all else."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: int) -> torch.Tensor:
        assert index == 0, "only hidden states are there"
        return self.last_hidden_state


def _check_placement(ctx: LayerContext, config: ModelConfig) -> None:
    served = f"{config.architecture} is served by the transformers backend, which runs on"
    if ctx.group is not None or ctx.stage is not None:
        raise ConfigError(
            f"--tensor-parallel-size and --pipeline-parallel-size must be 1: {served} a single rank"
        )
    if ctx.workspace.device.type != "cpu":
        raise ConfigError(f"--device must be cpu: {served} CPUs only")


def _is_tied(config: ModelConfig, model: PreTrainedModel) -> bool:
    if not model.config.get_text_config().tie_word_embeddings:
        return False
    names = {module: name for name, module in model.named_modules()}
    embedding = names[model.get_input_embeddings()]
    return not has_own_head(Path(config.path), embedding, f"{model.base_model_prefix}.")


def _try_out(config: ModelConfig, model: PreTrainedModel, hook: AttentionHook) -> list[LayerAttention]:
    """Run the model on the meta device; return what its attention layers ask for, in their order."""
    layers = hook.trial()
    positions = torch.arange(_TRIAL_TOKENS, device="meta").unsqueeze(0)
    try:
        with torch.inference_mode():
            model(
                input_ids=torch.zeros_like(positions),
                position_ids=positions,
                attention_mask=torch.ones_like(positions, dtype=torch.bool),
                use_cache=False,
            )
    except UnsupportedAttentionError as error:
        raise refusal(config, error) from error
    except Exception as error:
        # Such as one whose frequencies depend on the longest sequence of a batch.
        raise refusal(config, f"its layers look at values while they run ({error})") from error
    if len(layers) != config.num_layers:
        raise refusal(config, f"{len(layers)} of its {config.num_layers} layers have attention")
    sizes = {layer[1:3] for layer in layers}
    if len(sizes) != 1:
        raise refusal(config, f"KV heads and head sizes differ between layers: {sorted(sizes)}")
    _, num_kv_heads, head_dim, _ = layers[0]
    if head_dim % 8 or head_dim > 256:
        raise refusal(config, f"heads of {head_dim} elements; it must be a multiple of 8 up to 256")
    if any(layer.num_heads % num_kv_heads for layer in layers):
        raise refusal(config, f"{num_kv_heads} KV heads do not divide the query heads")
    if model.base_model is model:
        raise refusal(config, "its layers cannot be told from its head")
    return layers

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
from splitserve.worker.generic.attention import AttentionHook, LayerAttention, StepAttention
from splitserve.worker.generic.names import CheckpointNames
from splitserve.worker.generic.native_ops import LargeOperations
from splitserve.worker.generic.ranks.shares import LinearShares, OneRank, PlannedShares
from splitserve.worker.generic.ranks.stages import StageLayers
from splitserve.worker.generic.recorded_step import record
from splitserve.worker.generic.replacement import Replacement
from splitserve.worker.generic.rotation import StepRotation
from splitserve.worker.generic.skeleton import compute_buffers, make_skeleton
from splitserve.worker.generic.tracing import Launcher, StepTrace
from splitserve.worker.generic.trial import try_out
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.layers.adapters.adapters import Adapters
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.decode import Recording
from splitserve.worker.weights.tied_head import has_own_head

# Their operations between the kernels take longer than looking for those that are worth all threads.
_MANY_ROWS = 64
# Taking rows out of tensors and putting them back is worth it below this part of a step.
_FEW = 4
_numbers = itertools.count()


class TransformersModel:
    """A causal language model of the transformers library; see models.base.Model.

    Args:
        ctx: of this rank.
        config: of the checkpoint.

    Attributes:
        base: the library's model without its head.
        hook: the attention that its layers call.
        has_logits: it has an output head.
        sliding_windows: per layer of all stages, how many tokens a query sees, including itself; 0 for all.

    Raises:
        ModelLoadError: the library does not know it, or one of its layers asks for what is not computed here.
        ConfigError: the layers cannot be shared by these ranks, or the device is not the CPU.
    """

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
        whole = try_out(config, model, self.hook, config.num_layers)
        shares = OneRank() if ctx.group is None else PlannedShares(ctx, config, model, whole[0])
        self._stage = None if ctx.stage is None else StageLayers(ctx, config, model)
        replacement = Replacement(ctx, model, CheckpointNames(config, model), launch, shares)
        # Where no logits are wanted, the config is said to be tied.
        self.has_logits = not config.tie_word_embeddings
        replacement.replace_vocabulary(
            has_head=self.has_logits,
            is_tied=_is_tied(config, model),
            makes_logits=self._stage is None or self._stage.is_last,
        )
        replacement.replace_layers()
        layers = whole
        if ctx.group is not None or self._stage is not None:
            layers = _try_part(config, model, self.hook, shares, self._stage)
        compute_buffers(model)
        self._steps = StepAttention(ctx.backend, layers, launch, dtype)
        self.hook.serve(self._steps)
        self._rotation = StepRotation(model, launch)
        self._hidden = _GivenHidden()
        self.base = model.base_model
        setattr(model, model.base_model_prefix, self._hidden)
        self._with_head = model
        self.num_layers = len(layers)
        self.sliding_windows = tuple(layer.scores.sliding_window for layer in whole)
        self.num_kv_heads, self.head_dim = layers[0].num_kv_heads, layers[0].head_dim
        self.num_params = ctx.plan.num_params
        self.workspace = ctx.workspace
        self.is_recordable = ctx.stage is None and (ctx.group is None or ctx.group.can_be_captured)
        # Elsewhere the head makes a part of them only, for the one that samples.
        self._has_all_logits = ctx.is_first

    def forward(
        self,
        token_ids: torch.Tensor,
        meta: AttentionMetadata,
        kv_caches: Iterable[KVCache],
        outputs: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Return final hidden states [S, H], or None; see models.base.Model.forward."""
        if self._stage is None or self._stage.is_last:
            return self.states(token_ids, meta, kv_caches, outputs)
        self.states(token_ids, meta, kv_caches)
        return None

    def states(
        self,
        token_ids: torch.Tensor,
        meta: AttentionMetadata,
        kv_caches: Iterable[KVCache],
        outputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return hidden states [S, H] behind the layers of this stage; see models.base.Model.forward."""
        wanted = outputs if outputs is not None and _FEW * len(outputs) <= len(token_ids) else None
        compute = partial(self._compute, token_ids, meta, list(kv_caches), wanted)
        hidden = self._run("final_hidden", compute, len(token_ids))
        return hidden if outputs is None else hidden[outputs]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return fp32 logits [S, V]; see models.base.Model.compute_logits."""
        logits = self._run("logits", partial(self._compute_logits, hidden), len(hidden))
        return logits if self._has_all_logits else None

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
        # Of one sequence, so that the library does not look for several in the positions.
        mask = torch.ones(positions.shape, dtype=torch.bool)
        with self._rotation.step():
            return self.run_base(token_ids.long().unsqueeze(0), positions, mask)

    def run_base(
        self, token_ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run the library's modules, or those of this stage.

        Args:
            token_ids: int64 [1, T].
            positions: of the tokens, int64 [1, T].
            mask: bool [1, T], for its eyes; None for none.

        Returns:
            Hidden states [T, H].
        """
        run = partial(
            self.base, input_ids=token_ids, position_ids=positions, attention_mask=mask, use_cache=False
        )
        if self._stage is not None:
            return self._stage.run(run, token_ids.shape[1])
        hidden: torch.Tensor = run().last_hidden_state[0]
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
    if ctx.workspace.device.type != "cpu":
        served = f"{config.architecture} is served by the transformers backend, which runs on CPUs only"
        raise ConfigError(f"--device must be cpu: {served}")


def _is_tied(config: ModelConfig, model: PreTrainedModel) -> bool:
    if not model.config.get_text_config().tie_word_embeddings:
        return False
    names = {module: name for name, module in model.named_modules()}
    embedding = names[model.get_input_embeddings()]
    return not has_own_head(Path(config.path), embedding, f"{model.base_model_prefix}.")


def _try_part(
    config: ModelConfig,
    model: PreTrainedModel,
    hook: AttentionHook,
    shares: LinearShares,
    stage: StageLayers | None,
) -> list[LayerAttention]:
    """Run this rank's part of the model on the meta device; return what its attention layers ask for."""
    num_layers = config.num_layers if stage is None else len(stage.layers)
    layers = try_out(
        config, model, hook, num_layers, "do not fit together by the plan of the transformers library"
    )
    shares.settle_attention(layers)
    if stage is not None:
        stage.check(config)
    return layers

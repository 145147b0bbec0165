"""Makers of tiny random Hugging Face checkpoints, one per architecture, with a byte-level BPE tokenizer.

A checkpoint is a directory as transformers writes it: config.json, generation_config.json, safetensors and
tokenizer.json. `CheckpointCache` makes each once; the session fixture `checkpoints` hands it to every folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VOCAB_SIZE = 331
EOS_TOKEN_ID = 1

# Sizes of every architecture unless a spec says otherwise: 6 query and 2 KV heads, odd widths.
_DECODER: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": EOS_TOKEN_ID,
    # Wide enough that greedy choices are clear, so that rounding cannot turn them.
    "initializer_range": 0.25,
}
_GPT2: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": 512,
    "bos_token_id": 0,
    "eos_token_id": EOS_TOKEN_ID,
    "initializer_range": 0.25,
}
# Of DeepSeek's attention.
_LATENT: dict[str, object] = {
    "num_key_value_heads": 6,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
}
# What families need beside _DECODER, by the name of their transformers class: the name in a spec is its
# lower case.
_FAMILIES: dict[str, dict[str, object]] = {
    "Llama": {},
    "Mistral": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 24},
    "Granite": {},
    "SmolLM3": {"pad_token_id": None},
    "Phi3": {"pad_token_id": None},
    "Olmo2": {},
    "Olmo3": {},
    "Starcoder2": {},
    "SeedOss": {"head_dim": 16},
    "Cohere": {},
    "Cohere2": {},
    "Glm": {"head_dim": 16, "pad_token_id": None},
    "Glm4": {"head_dim": 16, "pad_token_id": None},
    "Gemma2": {"head_dim": 16},
    "Gemma3": {"head_dim": 16},
    "Mixtral": {"num_local_experts": 5},
    "Qwen2Moe": {
        "num_experts": 7,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "num_experts_per_tok": 3,
    },
    "Qwen3Moe": {
        "head_dim": 24,
        "num_experts": 7,
        "moe_intermediate_size": 24,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
    },
    "Olmoe": {"num_experts": 6, "num_experts_per_tok": 2, "pad_token_id": None},
    "GptOss": {
        "head_dim": 16,
        "num_local_experts": 5,
        "num_experts_per_tok": 3,
        "sliding_window": 13,
        "swiglu_limit": 1.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "truncate": False,
            "original_max_position_embeddings": 128,
        },
    },
    "DeepseekV2": {
        **_LATENT,
        "q_lora_rank": None,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    },
    "DeepseekV3": {
        **_LATENT,
        "q_lora_rank": 40,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "num_mtp_layers": 0,
    },
    "GraniteMoe": {"num_local_experts": 5},
    "GraniteMoeShared": {"num_local_experts": 5, "shared_intermediate_size": 40},
}
# Whose class of configs has another name.
_CONFIGS = {"Gemma3": "Gemma3Text"}
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL_TOKENS = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


@dataclass(frozen=True)
class CheckpointSpec:
    """What to make.

    Attributes:
        architecture: "gpt2", or a name of _FAMILIES in lower case.
        settings: fields of the transformers config that differ from the defaults above.
        dtype: of the weights.
        max_shard_bytes: 0 for a single file.
        seed: of the weights.
    """

    architecture: str = "llama"
    settings: Mapping[str, object] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    max_shard_bytes: int = 0
    seed: int = 0

    @property
    def key(self) -> str:
        """Equal for equal specs."""
        settings = json.dumps(self.settings, sort_keys=True)
        return f"{self.architecture} {settings} {self.dtype} {self.max_shard_bytes} {self.seed}"


class CheckpointCache:
    """Checkpoints under one folder, each made once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, Path] = {}

    def get(self, spec: CheckpointSpec) -> Path:
        """Return the directory of a checkpoint; nobody may change what is in it."""
        if spec.key not in self._made:
            path = self._root / f"{spec.architecture}-{len(self._made)}"
            make_checkpoint(path, spec)
            self._made[spec.key] = path
        return self._made[spec.key]


def make_checkpoint(path: Path, spec: CheckpointSpec) -> None:
    """Write a checkpoint with random weights."""
    model = make_reference(spec).to(spec.dtype)
    model.generation_config.eos_token_id = EOS_TOKEN_ID
    model.save_pretrained(path, max_shard_size=spec.max_shard_bytes or "1GB")
    write_tokenizer(path)


def make_reference(spec: CheckpointSpec) -> PreTrainedModel:
    """Return the transformers model of a spec, fp32, its weights drawn from the spec's seed."""
    import transformers

    if spec.architecture == "gpt2":
        config, model_class = (
            transformers.GPT2Config(**{**_GPT2, **spec.settings}),
            transformers.GPT2LMHeadModel,
        )
    else:
        (name,) = (name for name in _FAMILIES if name.lower() == spec.architecture)
        settings = {**_DECODER, **_FAMILIES[name], **spec.settings}
        config = getattr(transformers, f"{_CONFIGS.get(name, name)}Config")(**settings)
        model_class = getattr(transformers, f"{name}ForCausalLM")
    with torch.random.fork_rng():
        torch.manual_seed(spec.seed)
        model: PreTrainedModel = model_class(config)
        randomise_vectors(model)
        _separate_experts(model)
    return model.eval()


def load_reference(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Return the transformers model of a checkpoint directory in a dtype."""
    import transformers

    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="eager"
    )
    return model.eval()


def randomise_vectors(model: torch.nn.Module) -> None:
    """Draw norms and biases too: as ones and zeros they would hide that a loader mixes them up."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("_bias"):
                centre = 1.0 if "norm" in name or "ln_" in name else 0.0
                offset = 0.0 if name.endswith("bias") else centre
                parameter.normal_(offset, 0.2)


def _separate_experts(model: PreTrainedModel) -> None:
    """Make routers' choices clear, so that rounding turns few: with other experts a token is another."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.uniform_(-0.3, 0.3)
        for name, parameter in model.named_parameters():
            if name.endswith((".gate.weight", ".router.weight")):
                parameter *= 3


def write_tokenizer(path: Path) -> None:
    """Write a byte-level BPE tokenizer of at most VOCAB_SIZE tokens with a chat template into a directory."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = [
        "the quick brown fox jumps over the lazy dog",
        "hello there, how are you today?",
        "one two three four",
    ]
    tokenizer.train_from_iterator(text * 4, trainer)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL_TOKENS[0],
        "eos_token": _SPECIAL_TOKENS[EOS_TOKEN_ID],
        "chat_template": _CHAT_TEMPLATE,
        "model_max_length": 512,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))

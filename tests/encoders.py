"""Makers of tiny random encoders with their tokenizers, and the vectors that transformers makes with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

KINDS = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "modernbert": "ModernBert",
    "nomic-bert": "NomicBert",
}
VOCAB_SIZE = 300
MAX_LEN = 128
# Odd widths, and weights wide enough that attention is uneven.
_SIZES: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.25,
}
# Positions begin behind the padding token's, so there are two rows more than positions.
_ROBERTA: dict[str, object] = {
    "max_position_embeddings": MAX_LEN + 2,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}
_SPECIAL_IDS = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
_FAMILIES: dict[str, dict[str, object]] = {
    "bert": {},
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    # Windows far shorter than the prompts.
    "modernbert": {**_SPECIAL_IDS, "local_attention": 16, "global_attn_every_n_layers": 2},
    "nomic-bert": {},
}
_TEXT = ["the quick brown fox jumps over the lazy dog", "hello there, how are you today?", "one two three"]


def make_encoder(
    folder: Path,
    kind: str = "bert",
    settings: Mapping[str, object] | None = None,
    *,
    head: str = "Model",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Path:
    """Write an encoder with random weights, as transformers does.

    Args:
        folder: to write to.
        kind: a key of KINDS.
        settings: fields of the config that differ from those above.
        head: "Model", or "ForSequenceClassification".
        dtype: of the weights.
        seed: of the weights.
    """
    import transformers

    config = getattr(transformers, f"{KINDS[kind]}Config")(
        **{**_SIZES, **_FAMILIES[kind], **(settings or {})}
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{KINDS[kind]}{head}")(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # As ones and zeros they would hide that a loader mixes them up.
                if parameter.dim() == 1:
                    parameter.normal_(0.0 if name.endswith("bias") else 1.0, 0.2)
    model.to(dtype).save_pretrained(folder)
    is_roberta = kind.endswith("roberta")
    special = ("<s>", "</s>") if is_roberta else ("[CLS]", "[SEP]")
    _write_tokenizer(folder, *special, types_differ=kind in ("bert", "nomic-bert"))
    return folder


def _write_tokenizer(folder: Path, first: str, last: str, *, types_differ: bool) -> None:
    """Write a WordPiece tokenizer, whose template puts special tokens around a text and between two."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", first, last]
    tokenizer.train_from_iterator(
        _TEXT * 4,
        trainers.WordPieceTrainer(vocab_size=VOCAB_SIZE, special_tokens=special, show_progress=False),
    )
    between = f"{last} {last}" if first == "<s>" else last
    second = ":1" if types_differ else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {between} $B{second} {last}{second}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})
    )


def add_modules(
    folder: Path,
    mode: str = "mean_tokens",
    *,
    normalizes: bool = True,
    dense: Sequence[int] = (),
    max_tokens: int | None = None,
) -> Path:
    """Add the files of sentence-transformers: a pooling mode, dense layers of these widths, a norm."""
    names = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalizes]
    paths = ["", *(f"{i}_{name}" for i, name in enumerate(names[1:], 1))]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    size = json.loads((folder / "config.json").read_text())["hidden_size"]
    pooling = {
        "word_embedding_dimension": size,
        "pooling_mode_mean_tokens": False,
        f"pooling_mode_{mode}": True,
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for i, width in enumerate(dense):
        _write_dense(folder / f"{i + 2}_Dense", size, width, seed=i)
        size = width
    if max_tokens is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))
    return folder


def _write_dense(folder: Path, in_features: int, out_features: int, seed: int) -> None:
    from safetensors.torch import save_file

    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5
    bias = torch.randn(out_features, generator=generator)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "model.safetensors")
    config = {
        "in_features": in_features,
        "out_features": out_features,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (folder / "config.json").write_text(json.dumps(config))


def reference_states(
    folder: Path, prompts: Sequence[Sequence[int]], dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Return the last hidden states of each prompt, [n, H], computed by transformers in a dtype."""
    import transformers

    model = transformers.AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.inference_mode():
        return [model(torch.tensor([list(prompt)])).last_hidden_state[0] for prompt in prompts]


def pooled(states: Sequence[torch.Tensor], mode: str) -> npt.NDArray[np.float32]:
    """Return the vectors, float32 [n, H], of the hidden states of prompts."""
    ways = {
        "cls_token": lambda x: x[0],
        "mean_tokens": lambda x: x.mean(dim=0),
        "max_tokens": lambda x: x.max(dim=0).values,
        "lasttoken": lambda x: x[-1],
    }
    return torch.stack([ways[mode](each.float()) for each in states]).numpy()

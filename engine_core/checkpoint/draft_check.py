"""Can one model draft for another? They must mean the same by the same token ids."""

from __future__ import annotations

from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.draft_heads.eagle3 import read_eagle3
from splitserve.engine_core.checkpoint.draft_heads.mtp import mtp_config
from splitserve.engine_core.checkpoint.files import read_file
from splitserve.engine_core.checkpoint.text_files import TOKENIZER
from splitserve.engine_core.checkpoint.tokenizer.source import make_tokenizer_json
from splitserve.engine_core.errors import ConfigError, ModelLoadError


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    """A vocabulary gives each token its id, or is a list in the order of the ids, of tokens and scores."""

    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []


def read_draft_config(path: str, model: ModelConfig, method: str = "draft_model") -> ModelConfig:
    """Return the config of a model or head that drafts, limited to the context that is served.

    Args:
        path: its directory or GGUF file; "" for mtp.
        model: for which it drafts, limited to the context that is served.
        method: "draft_model", "eagle3" or "mtp".

    Raises:
        ConfigError: it cannot draft for this model; the message names both and says why.
        ModelLoadError: its files cannot be read.
    """
    if method == "mtp":
        return mtp_config(model)
    if method == "eagle3":
        head = read_eagle3(path, model)
        _compare_tokens(Path(path), Path(model.path))
        return head
    draft = read_model_config(path, "native")
    for windowed in (model, draft):
        if any(windowed.sliding_windows):
            raise ConfigError(
                f"{draft.path} cannot draft for {model.path}: layers of {windowed.path} have a sliding "
                "window, whose blocks are not kept for a draft model"
            )
    if draft.encoder is not None or draft.classifier is not None:
        raise ConfigError(f"the draft model {draft.path} makes no text: it is a {draft.architecture}")
    if draft.vocab_size != model.vocab_size:
        raise ConfigError(
            f"the draft model {draft.path} has another vocabulary than {model.path}: "
            f"{draft.vocab_size} tokens instead of {model.vocab_size}"
        )
    _compare_tokens(Path(draft.path), Path(model.path))
    return draft.limited_to(min(draft.max_model_len, model.max_model_len))


def _compare_tokens(draft: Path, model: Path) -> None:
    """Compare the texts of all token ids, where both come with a tokenizer."""
    described = [read_file(path / TOKENIZER) or make_tokenizer_json(path) for path in (draft, model)]
    if described[0] is None or described[1] is None or described[0] == described[1]:
        return
    drafted, wanted = _tokens(draft, described[0]), _tokens(model, described[1])
    differing = [i for i in drafted.keys() | wanted.keys() if drafted.get(i) != wanted.get(i)]
    if differing:
        first = min(differing)
        raise ConfigError(
            f"the draft model {draft} has another vocabulary than {model}: token {first} is "
            f"{drafted.get(first)!r:.100} instead of {wanted.get(first)!r:.100}"
        )


def _tokens(directory: Path, described: bytes) -> dict[int, str]:
    try:
        tokenizer = msgspec.json.decode(described, type=_Tokenizer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelLoadError(f"{directory / TOKENIZER} does not describe a tokenizer: {error}") from None
    vocab = tokenizer.model.vocab
    if isinstance(vocab, dict):
        tokens = {token_id: token for token, token_id in vocab.items()}
    else:
        tokens = {token_id: token for token_id, (token, _) in enumerate(vocab)}
    return tokens | {added.id: added.content for added in tokenizer.added_tokens}

"""The text side of a served model, read from its checkpoint: tokenizer, template, sampling defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from splitserve.engine_core.checkpoint.config.sampling_defaults import (
    SamplingDefaults,
    load_sampling_defaults,
)
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.frontend.text.answers.detection import find_formats
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.chat.known_templates import RERANKER, TEMPLATES, find_template
from splitserve.frontend.text.chat.pair_template import PairTemplate, takes_pairs
from splitserve.frontend.text.chat.template import ChatTemplate, template_sources
from splitserve.frontend.text.tokenizer import Tokenizer


@dataclass(slots=True, frozen=True)
class ModelAssets:
    """The text side of one model.

    Attributes:
        chat_template: None if the checkpoint has none; chat requests are then refused.
        eos_token_ids: ids that end a request unless ignore_eos.
        max_model_len: longest sequence, prompt and output together, in tokens.
        vocab_size: valid token ids are 0..vocab_size-1.
        answer_formats: how the model writes reasoning and tool calls.
        pair_template: makes one prompt of two texts; None if the tokenizer does, or nothing.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    sampling_defaults: SamplingDefaults
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    vocab_size: int
    answer_formats: AnswerFormats = field(default_factory=AnswerFormats)
    pair_template: PairTemplate | None = None


def load_model_assets(info: ModelInfo, directory: str = "", chat_template: str = "") -> ModelAssets:
    """Load the assets of a model; blocks for up to a second or two, so call it in a thread.

    Args:
        info: the model as the engine describes it.
        directory: where the files lie as this process sees them; "" takes info.path.
        chat_template: name or file of the template instead of the checkpoint's; "" takes that.

    Raises:
        ModelLoadError: names the file that is missing or wrong.
        ConfigError: there is no such template.
    """
    path = Path(directory or info.path)
    tokenizer = Tokenizer(path)
    sources = _sources(path, tokenizer, chat_template, judges=info.judges)
    template = ChatTemplate(sources, tokenizer) if sources else None
    return ModelAssets(
        tokenizer=tokenizer,
        chat_template=template,
        sampling_defaults=load_sampling_defaults(path),
        eos_token_ids=tuple(info.eos_token_ids),
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        answer_formats=find_formats(sources.values(), tokenizer.added_tokens),
        pair_template=PairTemplate(template) if template is not None and info.judges else None,
    )


def _sources(path: Path, tokenizer: Tokenizer, chat_template: str, *, judges: bool) -> dict[str, str]:
    """Return the templates of a model by name: those asked for, the checkpoint's, or a judge's usual one."""
    if chat_template:
        sources = {"default": find_template(chat_template)}
    else:
        sources = template_sources(path, tokenizer)
    if not judges or any(map(takes_pairs, sources.values())):
        return sources
    if chat_template:
        raise ConfigError(f"--chat-template {chat_template} has no roles query and document")
    return {"default": TEMPLATES[RERANKER]}

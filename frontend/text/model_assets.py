"""The text side of a served model, read from its checkpoint: tokenizer, template, sampling defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from splitserve.engine_core.checkpoint.config.sampling_defaults import (
    SamplingDefaults,
    load_sampling_defaults,
)
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.frontend.text.answers.detection import find_formats
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.chat.template import ChatTemplate, load_chat_template
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
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    sampling_defaults: SamplingDefaults
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    vocab_size: int
    answer_formats: AnswerFormats = field(default_factory=AnswerFormats)


def load_model_assets(info: ModelInfo, directory: str = "") -> ModelAssets:
    """Load the assets of a model; blocks for up to a second or two, so call it in a thread.

    Args:
        info: the model as the engine describes it.
        directory: where the files lie as this process sees them; "" takes info.path.

    Raises:
        ModelLoadError: names the file that is missing or wrong.
    """
    path = Path(directory or info.path)
    tokenizer = Tokenizer(path)
    chat_template = load_chat_template(path, tokenizer)
    sources = chat_template.sources.values() if chat_template is not None else ()
    return ModelAssets(
        tokenizer=tokenizer,
        chat_template=chat_template,
        sampling_defaults=load_sampling_defaults(path),
        eos_token_ids=tuple(info.eos_token_ids),
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        answer_formats=find_formats(sources, tokenizer.added_tokens),
    )

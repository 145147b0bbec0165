"""Everything text-side of a served model, read from its checkpoint directory: tokenizer, template, defaults."""

from __future__ import annotations

from dataclasses import dataclass

from engine_core.ipc.messages import ModelInfo
from frontend.chat_template import ChatTemplate
from frontend.tokenizer import Tokenizer


@dataclass(slots=True, frozen=True)
class SamplingDefaults:
    """Sampling values of generation_config.json; None where the checkpoint says nothing.

    A client's own value goes before these, and these before SamplingParams' defaults.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


@dataclass(slots=True, frozen=True)
class ModelAssets:
    """The text side of one model.

    Attributes:
        chat_template: None if the checkpoint has none; chat requests are then refused.
        eos_token_ids: ids that end a request unless ignore_eos.
        max_model_len: longest sequence, prompt and output together, in tokens.
        vocab_size: valid token ids are 0..vocab_size-1.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    sampling_defaults: SamplingDefaults
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    vocab_size: int


def load_model_assets(info: ModelInfo, directory: str = "") -> ModelAssets:
    """Load the assets of a model; blocks for up to a second or two, so call it in a thread.

    Args:
        info: the model as the engine describes it.
        directory: where the files lie as this process sees them; "" takes info.path.

    Raises:
        ModelLoadError: names the file that is missing or wrong.
    """
    raise NotImplementedError

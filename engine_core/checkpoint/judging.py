"""Is a decoder asked to judge a document by a query, and which tokens are its two answers?

Qwen3-Reranker and its like are decoders that answer "yes" or "no"; the score is the probability of the first
against the second at the end of the prompt, of which the sentence-transformers library makes a module.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from splitserve.engine_core.checkpoint.config.classifier import (
    ClassFunction,
    ScoreFunction,
    read_score_function,
)
from splitserve.engine_core.checkpoint.config.field_files import read_fields
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.files import read_json
from splitserve.engine_core.checkpoint.modules import read_max_tokens, read_modules
from splitserve.engine_core.checkpoint.text_files import TOKENIZER, read_tokenizer_json
from splitserve.engine_core.errors import ModelLoadError

_CONFIG = "config.json"
_LIBRARY_CONFIG = "config_sentence_transformers.json"
YES, NO = "yes", "no"


class Judge(NamedTuple):
    """How a decoder's answer becomes a score.

    Attributes:
        yes, no: the tokens; the number is the difference of their logits.
        max_tokens: longest prompt; 0 for the model's own limit.
        score_function: makes the number a score; a sigmoid is the probability of yes against no.
    """

    yes: int
    no: int
    max_tokens: int = 0
    score_function: ScoreFunction = "sigmoid"

    @property
    def class_function(self) -> ClassFunction:
        """Makes it a probability, likewise."""
        return self.score_function


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int]


class _Tokenizer(msgspec.Struct):
    model: _Vocabulary


def read_judge(config: ModelConfig, task: str, *, is_bare: bool = False) -> Judge | None:
    """Return how a checkpoint judges; None if it does something else.

    Args:
        config: of the checkpoint.
        task: "auto" goes by modules.json, "score" judges by "yes" and "no" without it, too.
        is_bare: the model has no output head.

    Raises:
        ModelLoadError: names the file and what it asks for that is not supported.
    """
    if task not in ("auto", "score"):
        return None
    directory = Path(config.path)
    modules = read_modules(directory)
    is_named = modules is not None and [each.kind for each in modules] == ["Transformer", "LogitScore"]
    if not is_named and task == "auto":
        return None
    if is_bare or config.encoder is not None:
        raise ModelLoadError(f"{directory / _CONFIG} names a model that answers nothing it could score by")
    if modules is None or not is_named:
        judge = Judge(*_answers(directory), read_max_tokens(directory))
    else:
        judge = _named_judge(directory, modules[1].folder)
    for token_id in (judge.yes, judge.no):
        if token_id >= config.vocab_size:
            raise ModelLoadError(
                f"{directory}: the token {token_id} of an answer is beyond vocab_size ({config.vocab_size})"
            )
    return judge


def _named_judge(directory: Path, folder: Path) -> Judge:
    fields = read_fields(folder / _CONFIG)
    source = fields.text("module_input_name", "causal_logits")
    if source != "causal_logits":
        raise fields.error("module_input_name", f"must be causal_logits, got {source[:200]!r}")
    yes, no = (fields.integer(f"{name}_token_id", 0, 2**31 - 1) for name in ("true", "false"))
    path = directory / _LIBRARY_CONFIG
    function: ScoreFunction = "sigmoid"
    if read_json(path):
        function = read_score_function(read_fields(path), "activation_fn")
    return Judge(yes, no, read_max_tokens(directory), function)


def _answers(directory: Path) -> tuple[int, int]:
    """Return the ids of "yes" and "no"."""
    try:
        vocab = msgspec.json.decode(read_tokenizer_json(directory), type=_Tokenizer).model.vocab
        return vocab[YES], vocab[NO]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        raise ModelLoadError(
            f"{directory / TOKENIZER}: --task score needs {YES!r} and {NO!r} to be tokens ({error})"
        ) from None

"""tokenizer.json and tokenizer_config.json from the vocabulary in a GGUF file's metadata."""

from __future__ import annotations

from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.gguf.header import Texts
from splitserve.engine_core.checkpoint.tokenizer.pieces import (
    SPACE,
    Kind,
    Piece,
    Preparation,
    merging,
    preparing,
)
from splitserve.engine_core.checkpoint.tokenizer.sections import (
    Json,
    added_token,
    around,
    byte_level,
    framed,
    whole,
)
from splitserve.engine_core.checkpoint.tokenizer.splits import SPLITS

_KEY = "tokenizer.ggml."
_MAX_TOKENS = 2**21
_GEMMA = ("gemma", "gemma2", "gemma3")
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
# What ends a turn in chats of the supported families, where a file names only one token.
_ENDS = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|endoftext|>"}


class Vocabulary(NamedTuple):
    """What a file says of its tokens.

    Attributes:
        fields: all metadata.
        kind: "gpt2" for byte-level BPE, "llama" for SentencePiece.
        tokens: by id.
        types: of the tokens, as GGUF numbers them.
    """

    fields: Fields
    kind: str
    tokens: list[str]
    types: list[int]

    def token(self, role: str) -> str | None:
        """Return the token of a role such as "bos", None if there is none."""
        token_id = self.fields.integer(f"{_KEY}{role}_token_id", 0, 2**32 - 1, 2**32 - 1)
        return self.tokens[token_id] if token_id < len(self.tokens) else None

    def adds(self, role: str) -> bool:
        """Whether the token of a role is added to every text; SentencePiece begins texts by default."""
        splits = SPLITS.get(self.fields.text(f"{_KEY}pre", "default"))
        begins = self.kind == "llama" or (splits is not None and splits.begins)
        return self.fields.boolean(f"{_KEY}add_{role}_token", role == "bos" and begins)


def read_vocabulary(fields: Fields) -> Vocabulary:
    """Read the tokens.

    Raises:
        ModelLoadError: they are missing, or of a kind that is not supported.
    """
    kind = fields.text(f"{_KEY}model", "")
    if kind not in ("gpt2", "llama"):
        raise fields.error(
            f"{_KEY}model",
            f"must be gpt2 or llama, got {kind!r:.100}: give frontends a tokenizer.json by --assets-dir",
        )
    tokens = _texts(fields, "tokens")
    if not 1 <= len(tokens) <= _MAX_TOKENS:
        raise fields.error(f"{_KEY}tokens", f"must hold 1 to {_MAX_TOKENS} texts, got {len(tokens)}")
    if len(set(tokens)) != len(tokens):
        raise fields.error(f"{_KEY}tokens", "holds the same text twice")
    types = fields.raw_list(f"{_KEY}token_type")
    if types is None:
        types = [Kind.NORMAL.value] * len(tokens)
    if len(types) != len(tokens) or not all(isinstance(kind, int) for kind in types):
        raise fields.error(f"{_KEY}token_type", f"must hold a number for each of {len(tokens)} tokens")
    return Vocabulary(fields, kind, tokens, [kind for kind in types if isinstance(kind, int)])


def end_ids(fields: Fields) -> list[int]:
    """Return the ids that end a sequence: those that are named, and control tokens that end turns."""
    named = [
        fields.integer(f"{_KEY}{name}_token_id", 0, 2**32 - 1, 2**32 - 1) for name in ("eos", "eot", "eom")
    ]
    found = {token_id for token_id in named if token_id != 2**32 - 1}
    if fields.has(f"{_KEY}tokens"):
        vocabulary = read_vocabulary(fields)
        pairs = zip(vocabulary.tokens, vocabulary.types, strict=True)
        found |= {i for i, (token, kind) in enumerate(pairs) if kind == Kind.CONTROL and token in _ENDS}
    return sorted(found)


def make_tokenizer(vocabulary: Vocabulary) -> dict[str, object]:
    """Return tokenizer.json.

    Raises:
        ModelLoadError: the merges or scores are missing, or texts are split in a way that is not supported.
    """
    if vocabulary.kind == "llama" and _is_gemma(vocabulary):
        vocabulary = _respelled(vocabulary)
    sections = _byte_level(vocabulary) if vocabulary.kind == "gpt2" else _pieces(vocabulary)
    begin, end = (
        [token] if vocabulary.adds(role) and (token := vocabulary.token(role)) else []
        for role in ("bos", "eos")
    )
    ids = {token: vocabulary.tokens.index(token) for token in begin + end}
    sections["post_processor"] = framed(sections.get("post_processor"), around(begin, end), ids)
    return whole(_added_tokens(vocabulary), sections)


def make_tokenizer_config(vocabulary: Vocabulary) -> dict[str, object]:
    """Return tokenizer_config.json: tokens with a role, and the chat template."""
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {f"{name}_token": token for name, role in _ROLES.items() if (token := vocabulary.token(role))}
    template = vocabulary.fields.text("tokenizer.chat_template", "")
    return {**config, "chat_template": template} if template else config


def _texts(fields: Fields, name: str) -> list[str]:
    value = fields.raw(f"{_KEY}{name}")
    if value is None:
        raise fields.error(f"{_KEY}{name}", "is missing")
    if not isinstance(value, Texts):
        raise fields.error(f"{_KEY}{name}", "must be a list of texts")
    return value.decode()


def _is_gemma(vocabulary: Vocabulary) -> bool:
    return vocabulary.fields.text("general.architecture", "") in _GEMMA


def _respelled(vocabulary: Vocabulary) -> Vocabulary:
    """Spell runs of spaces with the letter that they are looked up by, unlike Gemma's files."""
    tokens = [SPACE * len(token) if token and not token.strip(" ") else token for token in vocabulary.tokens]
    return vocabulary._replace(tokens=tokens)


def _added_tokens(vocabulary: Vocabulary) -> list[Json]:
    return [
        added_token(token_id, token, special=kind == Kind.CONTROL)
        for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in (Kind.CONTROL, Kind.USER_DEFINED)
    ]


def _byte_level(vocabulary: Vocabulary) -> Json:
    fields = vocabulary.fields
    name = fields.text(f"{_KEY}pre", "default")
    split = SPLITS.get(name)
    if split is None:
        raise fields.error(
            f"{_KEY}pre",
            f"must be one of {', '.join(SPLITS)}, got {name!r:.100}: give frontends a tokenizer.json by "
            "--assets-dir",
        )
    merges = [merge.split(" ") for merge in _texts(fields, "merges")]
    known = set(vocabulary.tokens)
    if not all(len(pair) == 2 and "".join(pair) in known and known.issuperset(pair) for pair in merges):
        raise fields.error(f"{_KEY}merges", "must hold pairs of tokens that make a token")
    return byte_level(split, {token: token_id for token_id, token in enumerate(vocabulary.tokens)}, merges)


def _pieces(vocabulary: Vocabulary) -> Json:
    fields = vocabulary.fields
    is_gemma = _is_gemma(vocabulary)
    found = fields.raw_list(f"{_KEY}scores")
    if found is None or len(found) != len(vocabulary.tokens):
        raise fields.error(f"{_KEY}scores", f"must hold a number for each of {len(vocabulary.tokens)} tokens")
    scores = [score for score in found if isinstance(score, float)]
    if len(scores) != len(found):
        raise fields.error(f"{_KEY}scores", "must hold numbers")
    pieces = list(map(Piece, vocabulary.tokens, scores, vocabulary.types))
    # Gemma's merges come in the order of the tokens, whatever their scores.
    ranks = range(len(scores)) if is_gemma else [-score for score in scores]
    sections = preparing(Preparation(adds_prefix=fields.boolean(f"{_KEY}add_space_prefix", not is_gemma)))
    unknown = vocabulary.token("unknown")
    return {**sections, "model": merging(pieces, ranks, unknown, fields.where, whole=False)}

"""A SentencePiece model, and what stands beside it → tokenizer.json.

What the tokenizers library would read in another way than SentencePiece does is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from splitserve.engine_core.checkpoint.sentencepiece.model_file import (
    ModelType,
    SentencePieceModel,
    parse_model,
)
from splitserve.engine_core.checkpoint.tokenizer.beside import Beside, Made, with_tokens
from splitserve.engine_core.checkpoint.tokenizer.pieces import (
    SPACE,
    Kind,
    Piece,
    Preparation,
    merging,
    most_likely,
    preparing,
)
from splitserve.engine_core.checkpoint.tokenizer.sections import (
    FIRST,
    SECOND,
    Json,
    added_token,
    around,
    framed,
    whole,
)

_MAX_UNUSED_IDS = 2**16
_NO_TEXT = "\ufdd3"
_XLM_ROBERTA, _T5 = "XLMRobertaTokenizer", "T5Tokenizer"
# Classes of transformers that number pieces or write texts in ways of their own.
_OTHERS = {
    f"{name}Tokenizer"
    for name in (
        *(
            "Albert",
            "Barthez",
            "BertGeneration",
            "BigBird",
            "Camembert",
            "Cpm",
            "DebertaV2",
            "ErnieM",
            "FNet",
        ),
        *("FNet", "LayoutXLM", "M2M100", "MBart", "MBart50", "Marian", "MLuke", "Nllb", "PLBart", "Pegasus"),
        *("Reformer", "RemBert", "SeamlessM4T", "Speech2Text", "SpeechT5", "Udop", "XGLM", "XLMProphetNet"),
        "XLNet",
    )
}


class _Ids(NamedTuple):
    """Ids of pieces with a role, -1 for none."""

    unk: int
    bos: int
    eos: int
    pad: int


def make_from_pieces(files: tuple[bytes, ...], beside: Beside) -> Made:
    """Return what is made of a model.

    Args:
        files: the model's, alone.
        beside: what stands beside it.

    Raises:
        ModelLoadError: the file is damaged, or asks for what is not supported.
    """
    model = parse_model(files[0], beside.where)
    name = _class_of(beside)
    _check(model, name, beside)
    pieces = list(map(Piece, model.pieces, model.scores, model.types))
    ids = _Ids(model.unk_id, model.bos_id, model.eos_id, model.pad_id)
    if name == _XLM_ROBERTA:
        pieces, ids = _renumbered(pieces, beside)
    if not 0 <= ids.unk < len(pieces):
        raise beside.error("it has no unknown piece")
    sections = _sections(model, pieces, ids, beside)
    cut_out = _cut_out(model)
    added, vocab = with_tokens(
        {piece.text: token_id for token_id, piece in enumerate(pieces)}, _own(model, pieces, cut_out), beside
    )
    described = sections["model"]
    assert isinstance(described, dict)
    _with_names(described, vocab, ids.unk, beside)
    sections["post_processor"] = _frame(name, pieces, ids, vocab, beside)
    names = {token_id: text for text, token_id in vocab.items()}
    roles = {
        f"{role}_token": names[token_id] for role, token_id in ids._asdict().items() if token_id in names
    }
    return Made(whole(added, sections), roles)


def _class_of(beside: Beside) -> str:
    name = beside.class_name
    return _XLM_ROBERTA if name in ("", "PreTrainedTokenizer") and _is_xlm_roberta(beside) else name


def _is_xlm_roberta(beside: Beside) -> bool:
    return beside.model_type in ("xlm-roberta", "xlm-roberta-xl")


def _check(model: SentencePieceModel, name: str, beside: Beside) -> None:
    problem = ""
    if model.model_type not in (ModelType.BPE, ModelType.UNIGRAM):
        names = {each.value: each.name for each in ModelType}
        found = names.get(model.model_type, model.model_type)
        problem = f"its model_type is {found}, and only BPE and UNIGRAM are supported"
    elif model.changes_output:
        problem = "it changes letters of what is decoded"
    elif model.puts_spaces_behind or not model.escapes_spaces:
        problem = "it treats spaces in a way of its own"
    elif len(set(model.pieces)) != len(model.pieces):
        problem = "it has the same piece twice"
    elif "" in model.pieces:
        problem = "it has an empty piece"
    elif name in _OTHERS:
        problem = f"a {name} has rules of its own"
    elif name == _T5 and beside.config.integer("extra_ids", 0, 2**16, 100) and not _numbers_tokens(beside):
        problem = "a T5Tokenizer numbers its extra ids in a way of its own"
    elif beside.where.endswith("sentencepiece.bpe.model") and name != _XLM_ROBERTA:
        problem = "files of this name are only read for an XLMRobertaTokenizer"
    if problem:
        raise beside.error(problem)


def _numbers_tokens(beside: Beside) -> bool:
    return beside.config.has("added_tokens_decoder") or bool(beside.added)


def _renumbered(pieces: Sequence[Piece], beside: Beside) -> tuple[list[Piece], _Ids]:
    """Return the pieces as fairseq numbers them: its four tokens take the place of the first three."""
    if len(pieces) < 3 or any(piece.kind == Kind.NORMAL for piece in pieces[:3]):
        raise beside.error("its first three pieces are no control symbols, unlike XLM-RoBERTa's")
    roles = (("bos", "<s>"), ("pad", "<pad>"), ("eos", "</s>"), ("unk", "<unk>"), ("mask", "<mask>"))
    names = [beside.role(f"{role}_token", usual) for role, usual in roles]
    first = [Piece(name, 0.0, Kind.CONTROL) for name in names[:3]]
    unknown = Piece(names[3], 0.0, Kind.UNKNOWN)
    found = [*first, unknown, *pieces[3:], Piece(names[4], 0.0, Kind.CONTROL)]
    if len({piece.text for piece in found}) != len(found):
        raise beside.error("it has the same piece twice")
    return found, _Ids(unk=3, bos=0, eos=2, pad=1)


def _sections(model: SentencePieceModel, pieces: list[Piece], ids: _Ids, beside: Beside) -> Json:
    config = beside.config
    adds_prefix = config.boolean("add_prefix_space", model.adds_prefix)
    isolated = _isolated(model, adds_prefix)
    preparation = Preparation(
        charsmap=model.charsmap,
        adds_prefix=adds_prefix,
        is_prefix_first=not config.boolean("legacy", True),
        removes_spaces=model.removes_spaces,
        cut_out=isolated,
    )
    if model.model_type == ModelType.UNIGRAM:
        return {**preparing(preparation), "model": most_likely(pieces, ids.unk)}
    # Neither merged nor looked for as they are spelled.
    apart = set(_cut_out(model).values())
    kept = [
        piece._replace(kind=Kind.UNUSED) if token_id in apart else piece
        for token_id, piece in enumerate(pieces)
    ]
    ranks = [-piece.score for piece in pieces]
    unknown = pieces[ids.unk].text
    return {
        **preparing(preparation),
        "model": merging(kept, ranks, unknown, beside.where, whole=bool(isolated)),
    }


def _isolated(model: SentencePieceModel, adds_prefix: bool) -> tuple[str, ...]:
    """Return the user-defined pieces that are cut out within a text: none gets a space put behind it.

    Where none is put before texts they are added tokens, which come to the same.
    """
    if not adds_prefix or model.model_type != ModelType.BPE:
        return ()
    pairs = zip(model.pieces, model.types, strict=True)
    return tuple(piece for piece, kind in pairs if kind == Kind.USER_DEFINED)


def _cut_out(model: SentencePieceModel) -> dict[str, int]:
    """Return the user-defined pieces with spaces, as texts have them, that are cut out first of all."""
    if model.adds_prefix or model.model_type != ModelType.BPE:
        return {}
    kinds = enumerate(zip(model.pieces, model.types, strict=True))
    return {
        piece.replace(SPACE, " "): token_id
        for token_id, (piece, kind) in kinds
        if kind == Kind.USER_DEFINED and SPACE in piece
    }


def _own(model: SentencePieceModel, pieces: Sequence[Piece], cut_out: dict[str, int]) -> dict[int, Json]:
    """Return the added tokens that the model itself has."""
    kinds = [Kind.CONTROL]
    if model.model_type == ModelType.BPE and not model.adds_prefix:
        kinds.append(Kind.USER_DEFINED)
    tokens = {
        token_id: added_token(token_id, piece.text, special=piece.kind == Kind.CONTROL)
        for token_id, piece in enumerate(pieces)
        if piece.kind in kinds
    }
    return tokens | {token_id: added_token(token_id, text) for text, token_id in cut_out.items()}


def _with_names(described: Json, vocab: dict[str, int], unknown_id: int, beside: Beside) -> None:
    """Put the tokens beside a model, and the names that they give to its pieces, into its section."""
    names = {token_id: text for text, token_id in vocab.items()}
    if isinstance(described["vocab"], dict):
        described |= {"vocab": vocab, "unk_token": names[unknown_id]}
        return
    listed = described["vocab"]
    assert isinstance(listed, list)
    size = 1 + max(names)
    if size > len(names) + _MAX_UNUSED_IDS:
        raise beside.error(f"more than {_MAX_UNUSED_IDS} ids below {size} have no token")
    hidden = min(score for _text, score in listed)
    # A unigram model has a list, so that ids without a token need something that no text holds.
    listed += [["", hidden] for _ in range(size - len(listed))]
    for token_id, entry in enumerate(listed):
        entry[0] = names.get(token_id, f"{_NO_TEXT}{token_id}")


def _frame(name: str, pieces: Sequence[Piece], ids: _Ids, vocab: dict[str, int], beside: Beside) -> object:
    """Return what puts tokens around texts."""
    config = beside.config
    names = {token_id: text for text, token_id in vocab.items()}
    begin, end = ([names[token_id]] if 0 <= token_id < len(pieces) else [] for token_id in (ids.bos, ids.eos))
    if name == _XLM_ROBERTA:
        single = [(begin[0], 0), (FIRST, 0), (end[0], 0)]
        return framed(None, (single, [*single, (end[0], 0), (SECOND, 0), (end[0], 0)]), vocab)
    # As transformers' tokenizers of Llama and Gemma have it, and that of T5.
    begins = config.boolean("add_bos_token", name != _T5)
    ends = config.boolean("add_eos_token", name == _T5)
    templates = around(begin if begins else [], end if ends else [])
    return framed(None, templates, vocab)

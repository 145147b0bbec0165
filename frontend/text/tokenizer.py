"""Text to token ids and back over a checkpoint's tokenizer.json, user text never read as control tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from splitserve.engine_core.checkpoint.files import read_json
from splitserve.engine_core.checkpoint.text_files import TOKENIZER, read_named_tokens, read_tokenizer_json
from splitserve.engine_core.checkpoint.tokenizer.merges import MAX_MERGES
from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError, ModelLoadError
from splitserve.frontend.text.chat.control_tokens import ControlEncoder
from splitserve.frontend.text.decode_table import DecodeRules, Pieces, read_decode_rules
from splitserve.frontend.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from splitserve.frontend.text.pairs import Pair
from splitserve.frontend.text.prefix_space import with_prefix_space
from splitserve.frontend.text.text_patterns import has_unknown_pattern
from splitserve.frontend.text.tokenizer_library import LibraryTokenizer
from splitserve.frontend.text.truncation import Truncation

MAX_BYTES_PER_TOKEN = 16
# Beyond what is in use: a million ids (XLM-V), 0.6 million merges.
MAX_VOCAB_SIZE = 2**21
MAX_UNUSED_IDS = 2**16
# Encoding takes about 0.1 to 0.2 us per character, so this is well under a millisecond on the event loop.
_MAX_CHARS_AT_ONCE = 4096
# Of the formats of one model's answers.
_MAX_KEPT_SETS = 16


class TokenText(NamedTuple):
    """How one token reads by itself, as OpenAI's logprobs show it.

    Attributes:
        text: its text; bytes that are no whole UTF-8 characters show as U+FFFD.
        data: the bytes the token stands for, exact.
    """

    text: str
    data: bytes


class _Model(msgspec.Struct, frozen=True):
    unk_token: str | None = None
    unk_id: int | None = None
    merges: list[msgspec.Raw] | None = None


class _Description(msgspec.Struct, frozen=True):
    """What is read of tokenizer.json besides what the library reads."""

    model: _Model
    decoder: dict[str, object] | None = None
    normalizer: object = None
    pre_tokenizer: object = None


class Tokenizer:
    """One tokenizer.json; safe to call from several threads.

    Attributes:
        raw: the library's tokenizer; it reads added tokens as letters, so use the methods here to encode.
        config: tokenizer_config.json, {} if there is none.
        vocab_size: one more than the largest token id the tokenizer can produce.
        added_tokens: text to id of all added tokens.
        special_tokens: text to id of those that are special.
        control_tokens: the special ones but the unknown token, which stands for letters the model lacks.
        special_ids: ids of the special tokens (skip_special_tokens drops their text).
        max_chars_at_once: shorter texts are encoded in well under a millisecond, others belong in a thread.
        named_tokens: texts of "bos_token", "eos_token" and the like, as far as the checkpoint names them.
    """

    def __init__(self, directory: str | Path) -> None:
        """Load tokenizer.json and tokenizer_config.json of a checkpoint directory.

        Raises:
            ModelLoadError: tokenizer.json is missing, cannot be read or goes beyond a limit; the message
                names the file.
        """
        directory = Path(directory)
        path = directory / TOKENIZER
        description = read_tokenizer_json(directory)
        self.config = read_json(directory / "tokenizer_config.json")
        self.named_tokens = read_named_tokens(directory)
        try:
            self._load(with_prefix_space(description, self.config))
        except (InvalidRequestError, msgspec.MsgspecError, ModelLoadError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"cannot read {path}: {error}") from None
        except RecursionError:
            raise ModelLoadError(f"cannot read {path}: it is nested too deeply") from None

    def _load(self, description: bytes) -> None:
        parts = msgspec.json.decode(description, type=_Description)
        if len(parts.model.merges or ()) > MAX_MERGES:
            raise ModelLoadError(f"it has more than {MAX_MERGES} merges")
        self.raw = LibraryTokenizer(description)
        added = self.raw.added_tokens()
        self.added_tokens = {token.content: token_id for token_id, token in added.items()}
        self.special_tokens = {token.content: token_id for token_id, token in added.items() if token.special}
        self.special_ids = frozenset(self.special_tokens.values())
        unknown = {self.named_tokens.get("unk_token"), parts.model.unk_token}
        if parts.model.unk_id is not None:
            unknown.add(self.raw.id_to_token(parts.model.unk_id))
        # GPT-2's ends texts, too, and never stands for letters.
        unknown -= {text for role, text in self.named_tokens.items() if role != "unk_token"}
        self.control_tokens = {t: i for t, i in self.special_tokens.items() if t not in unknown}
        has_unknown = has_unknown_pattern([parts.normalizer, parts.pre_tokenizer])
        self.max_chars_at_once = 0 if has_unknown else _MAX_CHARS_AT_ONCE
        self.vocab_size = _vocab_size(self.raw.vocab())
        _check_special_ids(self.raw, self.vocab_size)
        self._rules = read_decode_rules(parts.decoder)
        self._pieces = _PieceTables(self.raw, self._rules, self.special_ids, self.vocab_size)
        self._encoder = ControlEncoder(self.raw, self.vocab_size, self.control_tokens.values())

    def encode(
        self, text: str, add_special_tokens: bool = True, *, parse_special_tokens: bool = False
    ) -> list[int]:
        """Encode text to token ids.

        Args:
            text: any text; may be empty.
            add_special_tokens: add what the tokenizer's post-processor adds (e.g. BOS).
            parse_special_tokens: read "<|im_end|>" and the like as control tokens. Off, as is right for text
                that others wrote, they are encoded letter by letter.

        Raises:
            InvalidRequestError: the text holds lone surrogates, or the library fails on it.
        """
        check_unicode(text)
        return self._encoder.encode(text, add_special_tokens, parse_special_tokens=parse_special_tokens)

    def encode_pair(
        self, first: str, second: str, add_special_tokens: bool = True, truncation: Truncation | None = None
    ) -> Pair:
        """Encode two texts as one prompt, as the post-processor puts them together.

        Args:
            first: any text.
            second: any text.
            add_special_tokens: add what the post-processor adds around and between them.
            truncation: of the prompt; None for none.

        Raises:
            InvalidRequestError: a text holds lone surrogates, or the library fails on it.
        """
        for text in (first, second):
            check_unicode(text)
        return self._encoder.encode_pair((first, second), add_special_tokens, truncation)

    async def encode_pair_async(
        self, first: str, second: str, add_special_tokens: bool, truncation: Truncation | None
    ) -> Pair:
        """Encode as encode_pair() does, without holding up the event loop."""
        if len(first) + len(second) < self.max_chars_at_once:
            return self.encode_pair(first, second, add_special_tokens, truncation)
        return await asyncio.to_thread(self.encode_pair, first, second, add_special_tokens, truncation)

    def encode_marked(self, text: str) -> list[int]:
        """Encode a rendered chat in which what users wrote is marked (see frontend.text.chat.control_tokens).

        Raises:
            InvalidRequestError: the text holds lone surrogates.
        """
        check_unicode(text)
        return self._encoder.encode_marked(text)

    async def encode_async(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        parse_special_tokens: bool = False,
    ) -> list[int]:
        """Encode as encode() does, without holding up the event loop: texts that may take long have a thread.

        Args:
            text: any text; may be empty.
            add_special_tokens: add what the tokenizer's post-processor adds.
            parse_special_tokens: read special tokens in the text as control tokens.

        Raises:
            InvalidRequestError: the text holds lone surrogates.
        """
        if len(text) < self.max_chars_at_once:
            return self.encode(text, add_special_tokens, parse_special_tokens=parse_special_tokens)
        return await asyncio.to_thread(
            self.encode, text, add_special_tokens, parse_special_tokens=parse_special_tokens
        )

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode token ids to text, the same that streaming them gives. Unknown ids read as nothing."""
        detokenizer = self.detokenizer(skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.finish()

    def detokenizer(
        self,
        skip_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] = (),
        kept_ids: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """Make the incremental decoder of one sequence.

        Args:
            skip_special_tokens: special tokens have no text, those of the prompt neither.
            prompt_token_ids: what the sequence goes on from. Many decoders take a space off the beginning of
                a text: behind a prompt that is no beginning.
            kept_ids: special tokens that have text nevertheless; few different sets, as each has its tables.
        """
        if self._rules is None:
            hidden = self.special_ids - kept_ids if skip_special_tokens else frozenset[int]()
            return WindowDetokenizer(self.raw, hidden, self.vocab_size, prompt_token_ids)
        pieces, first_pieces = self._pieces.tables(skip_special_tokens, kept_ids)
        return ByteDetokenizer(self._rules, pieces, first_pieces, prompt_token_ids)

    def token_text(self, token_id: int) -> TokenText:
        """Return text and bytes of one token by itself; an unknown id has neither."""
        if self._rules is None:
            known = 0 <= token_id < self.vocab_size
            text = self.raw.decode([token_id]) if known else ""
            return TokenText(text, text.encode())
        data = self._pieces.keep[token_id]
        return TokenText(data.decode("utf-8", "replace"), data)

    def token_name(self, token_id: int) -> str | None:
        """Return the vocabulary's spelling of a token (with the "Ġ" of byte-level BPE), None if unknown."""
        return self.raw.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its spelling in the vocabulary, None if unknown."""
        token_id = self.raw.token_to_id(token)
        return token_id if token_id is None or token_id < self.vocab_size else None


class _PieceTables:
    """The byte tables of one tokenizer: with and without special tokens, and for a text's first token."""

    def __init__(
        self, raw: LibraryTokenizer, rules: DecodeRules | None, special_ids: frozenset[int], limit: int
    ) -> None:
        self._raw = raw
        self._spell = rules.spell if rules else str.encode
        self._spell_first = rules.spell_first if rules else None
        self._special_ids = special_ids
        self._limit = limit
        self._keep = self._make(frozenset())
        self.keep = self._keep[0]
        self._skip = self._make(special_ids)
        # The tables that skip all special tokens but these.
        self._skip_others: dict[frozenset[int], tuple[Pieces, Pieces | None]] = {}

    def tables(self, skip_special_tokens: bool, kept_ids: frozenset[int]) -> tuple[Pieces, Pieces | None]:
        if not skip_special_tokens:
            return self._keep
        if not kept_ids:
            return self._skip
        tables = self._skip_others.get(kept_ids)
        if tables is None:
            tables = self._make(self._special_ids - kept_ids)
            if len(self._skip_others) < _MAX_KEPT_SETS:
                self._skip_others[kept_ids] = tables
        return tables

    def _make(self, skip: frozenset[int]) -> tuple[Pieces, Pieces | None]:
        first = self._spell_first
        return (
            Pieces(self._raw, self._spell, skip, self._limit),
            Pieces(self._raw, first, skip, self._limit) if first else None,
        )


def check_text_length(text: str, max_model_len: int, param: str = "prompt") -> None:
    """Refuse text that cannot fit the context, before it is tokenised.

    Args:
        text: any.
        max_model_len: tokens that fit.
        param: the text's path in the request.

    Raises:
        ContextLengthError: names the limit and the size.
    """
    limit = max_model_len * MAX_BYTES_PER_TOKEN
    # Characters first: a lower bound of the bytes that costs nothing.
    size = len(text) if len(text) > limit else len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        what = "prompt" if param.startswith("prompt") else "input"
        raise ContextLengthError.of_text(max_model_len, f"{size} bytes", f"{limit} bytes", what, param)


def check_unicode(text: str) -> None:
    """Refuse lone surrogates, which no UTF-8 can hold.

    Raises:
        InvalidRequestError: names the place of the first one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text is not valid Unicode: lone surrogate at character {error.start}"
        ) from None


def _vocab_size(vocab: dict[str, int]) -> int:
    """Return one more than the largest id; tables have as many places.

    Raises:
        ModelLoadError: it is far larger than any model's vocabulary, or than the number of tokens.
    """
    size = 1 + max(vocab.values(), default=-1)
    if size > MAX_VOCAB_SIZE:
        raise ModelLoadError(f"its largest token id is {size - 1}, more than {MAX_VOCAB_SIZE - 1}")
    if size > len(vocab) + MAX_UNUSED_IDS:
        raise ModelLoadError(
            f"its largest token id is {size - 1}, but it has {len(vocab)} tokens: more than {MAX_UNUSED_IDS} "
            f"ids are unused"
        )
    return size


def _check_special_ids(raw: LibraryTokenizer, vocab_size: int) -> None:
    """Refuse a post-processor that adds what is no token: every request would fail on it.

    Raises:
        ModelLoadError: names the id.
    """
    largest = max(raw.add_special_tokens_to(raw.encode("")), default=-1)
    if largest >= vocab_size:
        raise ModelLoadError(f"its post-processor adds the token id {largest}, which it does not have")

"""Mutated tokenizer files on the frontend: either they load, and then read text, or they are refused by name.

A case is one file: a byte that says which one (the index in FILES), then its contents.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from splitserve.engine_core.checkpoint.text_files import check_text_files
from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import CHATML, KINDS, with_bos, write_checkpoint
from tests.fuzz.case import Case
from tests.fuzz.folders import make_folder
from tests.fuzz.mutation.formats import mutate_json
from tests.fuzz.targets.model_files import check_refusal

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
TEXT = "Hello <|im_end|> wörld 你好 \U0001f642  ok.\n"


def tokenizers() -> list[bytes]:
    """A tokenizer.json of every kind, with less of a vocabulary: most of its bytes are of no interest."""
    found = []
    for make in KINDS.values():
        description = json.loads(make().to_str())
        vocab = description["model"]["vocab"]
        size = 300 if len(vocab) > 300 else len(vocab)
        description["model"]["vocab"] = {token: i for token, i in vocab.items() if i < size}
        description["model"]["merges"] = description["model"].get("merges", [])[:4]
        if make is with_bos:
            # Its post-processor names ids behind those.
            found.append(make().to_str().encode())
            continue
        found.append(json.dumps(description).encode())
        if len(vocab) < 300:
            continue
        # Few tokens leave more edits to the rest.
        description["model"]["vocab"] = {token: i for token, i in vocab.items() if i < 12}
        description["model"]["merges"] = []
        found.append(json.dumps(description).encode())
    return found


def tokenizer_configs() -> list[bytes]:
    """Files tokenizer_config.json."""
    token = {"content": "<|im_end|>", "lstrip": False, "normalized": False, "special": True}
    config = {"chat_template": CHATML, "eos_token": "<|im_end|>", "bos_token": token, "add_bos_token": True}
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": CHATML}]
    other = {"chat_template": named, "add_prefix_space": True, "unk_token": None, "legacy": False}
    return [json.dumps(config).encode(), json.dumps({**other, "tokenizer_class": "Llama"}).encode(), b"{}"]


class TextFiles:
    """See the module."""

    what = "files"

    def __init__(self) -> None:
        self._corpora = [tokenizers(), tokenizer_configs(), tokenizer_configs()]
        self._place = make_folder()
        self._folder = write_checkpoint(Path(self._place.name) / "model")
        self._sound = {name: (self._folder / name) for name in FILES}
        self._contents = {FILES[0]: self._corpora[0][0], FILES[1]: self._corpora[1][0], FILES[2]: b"{}"}

    def draw(self, rng: Random) -> Case:
        number = 0 if rng.random() < 0.8 else 1 + int(rng.random() * 2)
        corpus = self._corpora[number]
        return [self.mutate(rng, bytes((number,)) + corpus[int(rng.random() * len(corpus))])]

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        number = piece[0] % len(FILES) if piece else 0
        return bytes((number,)) + mutate_json(rng, piece[1:], self._corpora[number])

    def run(self, case: Case) -> int:
        for piece in case:
            number = piece[0] % len(FILES) if piece else 0
            for name, content in {**self._contents, FILES[number]: piece[1:]}.items():
                self._sound[name].write_bytes(content)
            self._read()
        return len(case)

    def _read(self) -> None:
        try:
            check_text_files(self._folder)
        except ModelLoadError as error:
            check_refusal(error, self._folder)
            return
        try:
            tokenizer = Tokenizer(self._folder)
        except ModelLoadError as error:
            check_refusal(error, self._folder)
            return
        try:
            for text in (TEXT, "", "<|im_start|>" * 3):
                ids = tokenizer.encode(text) + tokenizer.encode(text, False, parse_special_tokens=True)
                assert all(0 <= token_id < max(1, tokenizer.vocab_size) for token_id in ids), ids
                tokenizer.decode(ids)
            detokenizer = tokenizer.detokenizer(True, [0, 1])
            for token_id in range(min(40, tokenizer.vocab_size)):
                detokenizer.push([token_id])
                tokenizer.token_text(token_id)
            detokenizer.finish()
        except InvalidRequestError:
            return

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        self._place.cleanup()

"""Compiles grammars beside the worker's loop, and keeps those that were used last.

A grammar takes from a tenth of a millisecond to some hundred to compile, so the engine asks for it when a
request arrives and admits the request once it is ready. The thread has a low priority: steps go first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from splitserve.engine_core.checkpoint.text_files import read_tokenizer_json
from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError
from splitserve.engine_core.ipc.worker_messages import CompileGrammar, GrammarCompiled
from splitserve.engine_core.process.logs import log_event

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

logger = logging.getLogger(__name__)

# More than the engine remembers as compiled, so that what it believes to be here is.
MAX_COMPILED: Final = 512
# And of their texts together, which is about what they take beside the states that llguidance adds.
MAX_COMPILED_CHARS: Final = 16 << 20
# Regex work of one mask; a mask that takes more ends its request. About 14,000 units per millisecond.
_STEP_LEXER_FUEL: Final = 400_000
_NICE: Final = 10


def parser_limits() -> LLParserLimits:
    """Return what a grammar and its masks may take."""
    from llguidance import LLParserLimits

    # Errors must not quote the parser's state, which holds the client's schema and output.
    return LLParserLimits(step_lexer_fuel=_STEP_LEXER_FUEL, verbose_errors=False)


def reason_of(matcher: LLMatcher) -> str:
    """Return why a matcher failed, without the mark that stands for the parser's state."""
    return matcher.get_error().partition("<non-verbose/>")[0].strip()


class GrammarCompiler:
    """Owns the tokenizer of the grammars, their matchers and one thread; called by the worker's thread.

    Attributes:
        done_fd: readable when there is something for take_done(), once something was asked.
    """

    def __init__(self, checkpoint: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Args: checkpoint holds tokenizer.json, read at first use; masks have vocab_size bits."""
        self._checkpoint = checkpoint
        self._vocab_size = vocab_size
        self._eos_token_ids = [token_id for token_id in eos_token_ids if 0 <= token_id < vocab_size]
        self._tokenizer: LLTokenizer | None = None
        # One at a time loads the tokenizer, adds a matcher or copies one.
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._num_chars = 0
        self._thread: ThreadPoolExecutor | None = None
        self._num_asked = 0
        # Of those who asked: an engine that is gone asked before this one.
        self._asker = 0
        self._done: deque[tuple[int, GrammarCompiled]] = deque()
        self.done_fd = -1

    @property
    def is_busy(self) -> bool:
        """Whether some answer is still due."""
        return self._num_asked > 0

    def prepare(self) -> None:
        """Begin to read the tokenizer, which keeps the GIL for up to a second: not while others decode."""
        self._begin().submit(self._try_tokenizer)

    def ask(self, message: CompileGrammar) -> None:
        """Compile a grammar in the background; take_done() will return the answer."""
        self._num_asked += 1
        self._begin().submit(self._answer_asker, self._asker, message)

    def forget_asks(self) -> None:
        """Answer nobody: who asked is gone. What was asked for is compiled all the same."""
        self._asker += 1
        self._num_asked = 0

    def answer(self, message: CompileGrammar) -> GrammarCompiled:
        """Compile a grammar now."""
        try:
            self.matcher(message.grammar)
        except InvalidRequestError as refused:
            return GrammarCompiled(message.number, str(refused))
        except Exception as unexpected:
            log_event(logger, logging.ERROR, "grammar_failed", unexpected)
            return GrammarCompiled(message.number, f"{type(unexpected).__name__}: {unexpected}")
        return GrammarCompiled(message.number)

    def take_done(self) -> list[GrammarCompiled]:
        """Return the answers that are ready, oldest first."""
        if not self._num_asked:
            return []
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.done_fd)
        done = []
        while self._done:
            asker, answer = self._done.popleft()
            if asker == self._asker:
                done.append(answer)
        self._num_asked -= len(done)
        return done

    def matcher(self, grammar: str) -> LLMatcher:
        """Return a matcher of the grammar at its start; compiled now if it is not kept any more.

        Raises:
            InvalidRequestError: the grammar cannot be compiled; quotes llguidance.
        """
        with self._lock:
            known = self._compiled.get(grammar)
            if known is not None:
                self._compiled.move_to_end(grammar)
                return known.deep_copy()
        return self._compile(grammar).deep_copy()

    def close(self) -> None:
        """End the thread; a grammar that is being compiled is finished first."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
            os.close(self.done_fd)

    def _begin(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self.done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._thread = ThreadPoolExecutor(1, "grammars")
        return self._thread

    def _try_tokenizer(self) -> None:
        # Whoever asks for a grammar is told what is wrong with it.
        with contextlib.suppress(InvalidRequestError):
            self._load_tokenizer()
        _lower_priority()

    def _answer_asker(self, asker: int, message: CompileGrammar) -> None:
        self._done.append((asker, self.answer(message)))
        os.eventfd_write(self.done_fd, 1)

    def _compile(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher

        tokenizer = self._load_tokenizer()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        if not matcher.is_error():
            # Takes milliseconds here; its copies, which share what it learns of the text, have it at once.
            matcher.compute_bitmask()
        if matcher.is_error():
            raise InvalidRequestError(reason_of(matcher), "grammar", "invalid_grammar")
        with self._lock:
            if grammar not in self._compiled:
                self._num_chars += len(grammar)
            self._compiled[grammar] = matcher
            while len(self._compiled) > MAX_COMPILED or (
                self._num_chars > MAX_COMPILED_CHARS and len(self._compiled) > 1
            ):
                oldest, _ = self._compiled.popitem(last=False)
                self._num_chars -= len(oldest)
        return matcher

    def _load_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        with self._lock:
            if self._tokenizer is None:
                if not self._eos_token_ids:
                    raise InvalidRequestError(
                        "the model has no end-of-sequence token, so no grammar could end its output",
                        "grammar",
                    )
                try:
                    # By its content, since in a GGUF file there is no such file to open.
                    description = read_tokenizer_json(Path(self._checkpoint)).decode().lstrip()
                    self._tokenizer = LLTokenizer(
                        description, n_vocab=self._vocab_size, eos_token=self._eos_token_ids
                    )
                except (ValueError, ModelLoadError) as error:
                    raise InvalidRequestError(
                        f"grammars need the model's tokenizer.json: {error}", "grammar"
                    ) from None
            return self._tokenizer


def _lower_priority() -> None:
    """Let the calling thread run where others leave room; on Linux a thread has its own priority."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)

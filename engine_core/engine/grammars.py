"""Which requests wait for their grammar? The worker compiles it beside its steps, then they are admitted.

    a grammar is     by                                      its requests
    unknown          -                                       -
    asked for        a request; again after a lost worker    wait in the queue, others overtake them
    compiled         the worker's answer                     are admitted
    refused          the worker's answer                     end with "invalid_grammar" (400)

What is compiled is remembered, so that later requests with the same grammar do not wait. A grammar that was
asked for when workers were lost, and again when the next ones were, is not asked for a third time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Set
from typing import Final

from splitserve.engine_core.errors import UnsafeRequestError, WorkerError
from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.ipc.worker_messages import CompileGrammar, GrammarCompiled
from splitserve.engine_core.request import EndedRequest, Request, RequestState

# Fewer than the worker keeps, and half of the characters.
MAX_REMEMBERED: Final = 256
MAX_REMEMBERED_CHARS: Final = 8 << 20
_MAX_LOSSES: Final = 2


class _Asked:
    """A grammar that is not compiled yet, and who waits for it."""

    def __init__(self, grammar: str, num_losses: int = 0) -> None:
        self.grammar = grammar
        self.requests: list[Request] = []
        self.is_sent = False
        self.num_losses = num_losses

    def ends(self, code: str, message: str, status: int) -> list[EndedRequest]:
        """Return the ends of the requests that are still there."""
        return [
            EndedRequest(request, FinishReason.ERROR, None, code, message, status)
            for request in self.requests
            if request.state is not RequestState.ENDED
        ]


class Grammars:
    """The grammars of the requests in flight; used by the engine's thread.

    Attributes:
        uncompiled: grammars whose requests may not be admitted yet; the same object always.
    """

    def __init__(self) -> None:
        self._asked: dict[str | None, _Asked] = {}
        self._by_number: dict[int, _Asked] = {}
        self._unsent: list[_Asked] = []
        self._next_number = 0
        self._compiled: OrderedDict[str, None] = OrderedDict()
        self._num_chars = 0
        self.uncompiled: Set[str | None] = self._asked.keys()

    def add(self, requests: Iterable[Request]) -> None:
        """Take in requests that wait in the queue."""
        for request in requests:
            grammar = request.sampling.grammar
            if grammar is None or request.state is RequestState.ENDED:
                continue
            if grammar in self._compiled:
                self._compiled.move_to_end(grammar)
                continue
            if grammar not in self._asked:
                self._ask(_Asked(grammar))
            self._asked[grammar].requests.append(request)

    def take_unsent(self) -> list[CompileGrammar]:
        """Return what the worker is to be asked."""
        if not self._unsent:
            return []
        unsent, self._unsent = self._unsent, []
        messages = []
        for asked in unsent:
            asked.is_sent = True
            self._next_number += 1
            self._by_number[self._next_number] = asked
            messages.append(CompileGrammar(self._next_number, asked.grammar))
        return messages

    def answered(self, answer: GrammarCompiled) -> list[EndedRequest]:
        """Take the worker's answer; returns the requests that end because their grammar was refused.

        Raises:
            WorkerError: nothing was asked under this number.
        """
        asked = self._by_number.pop(answer.number, None)
        if asked is None:
            raise WorkerError(f"the worker compiled grammar {answer.number}, which was not asked for")
        del self._asked[asked.grammar]
        if answer.error:
            return asked.ends("invalid_grammar", answer.error, 400)
        self._compiled[asked.grammar] = None
        self._num_chars += len(asked.grammar)
        while len(self._compiled) > MAX_REMEMBERED or self._num_chars > MAX_REMEMBERED_CHARS:
            oldest, _ = self._compiled.popitem(last=False)
            self._num_chars -= len(oldest)
        return []

    def start_over(self, requests: Iterable[Request]) -> list[EndedRequest]:
        """The workers are lost: ask the next ones again.

        Args:
            requests: all in flight; they wait.

        Returns:
            Requests that end, since workers were lost twice while they compiled their grammar.
        """
        lost = list(self._asked.values())
        self._asked.clear()
        self._by_number.clear()
        self._unsent.clear()
        self._compiled.clear()
        self._num_chars = 0
        unsafe: list[EndedRequest] = []
        for asked in lost:
            num_losses = asked.num_losses + asked.is_sent
            if num_losses < _MAX_LOSSES:
                self._ask(_Asked(asked.grammar, num_losses))
                continue
            message = "workers were lost twice while they compiled its grammar, so it is not tried again"
            unsafe += asked.ends(UnsafeRequestError.code, message, UnsafeRequestError.status)
        ending = {ended.request for ended in unsafe}
        self.add(request for request in requests if request not in ending)
        return unsafe

    def _ask(self, asked: _Asked) -> None:
        self._asked[asked.grammar] = asked
        self._unsent.append(asked)

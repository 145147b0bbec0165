"""Which requests are suspected of an engine's death, and whose turn is it to be tried?

    state of a request   is present at a death      gets on by 8 tokens, or ends   died indeed   lives
    innocent             -> accused                 -                              -             -
    accused              -> accused, held,          -> innocent                    -             -> as before
                         doubtful or unsafe
    held (its turn)      -> held, doubtful, unsafe  -> innocent                    -             -> as before
    doubtful (waits)     -                          -> innocent                    -> unsafe,    -> accused
                                                                                   or held       or held

The rule is engine_core.suspects. Suspects are held until every other accused request is innocent again; then
they go one at a time, so that a further death has one request in common with those before. A few more tokens
than one are asked for, because the last ones before a death are lost with it and merely come again. Whoever
is before it may wait in an engine's queue for long: a suspect whose turn does not come in time is let go.

An engine that cannot be reached may live: when it is ready again, its epoch tells whether it had died. Until
then nobody is ended for its death, and the only request in common with another one is tried nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from splitserve.engine_core.suspects import Death, Suspects
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.failover.client_request import ClientRequest

MIN_PROGRESS_TOKENS = 8


class Trials:
    """The requests present at deaths, until each has shown that it was not the cause."""

    def __init__(self) -> None:
        self._rule: Suspects[ClientRequest] = Suspects()
        # Per accused request its sequences on an engine, each with the number of tokens that clears it.
        self._accused: dict[ClientRequest, list[tuple[OpenSequence, int]]] = {}
        self._held: list[ClientRequest] = []
        self._doubtful: list[ClientRequest] = []

    def __len__(self) -> int:
        return len(self._accused)

    def __contains__(self, client: object) -> bool:
        return client in self._accused

    @property
    def num_held(self) -> int:
        """Number of suspects, the one on trial included."""
        return len(self._held)

    def died(
        self, present: Sequence[ClientRequest], death: Death, unseen: Collection[ClientRequest] = ()
    ) -> list[ClientRequest]:
        """Judge a death; return the requests that must not be tried again.

        Args:
            present: requests that had a sequence open on the engine.
            death: of the engine.
            unseen: those of them that may only have waited in the engine's queue.
        """
        verdict = self._rule.died(present, death, unseen)
        for client in present:
            elsewhere = [entry for entry in self._accused.get(client, ()) if entry[0].place is not None]
            self._accused[client] = elsewhere
        self._suspect(verdict.suspects)
        self._doubtful += [client for client in verdict.doubtful if client not in self._doubtful]
        for client in verdict.unsafe:
            self._clear(client)
        return verdict.unsafe

    def confirm(self, death: Death) -> list[ClientRequest]:
        """Note that an engine has died indeed; return the requests that must not be tried again."""
        death.is_certain = True
        unsafe = [client for client in self._doubtful if self._rule.is_proven(client)]
        for client in unsafe:
            self._clear(client)
        self._settle_doubts()
        return unsafe

    def take_back(self, death: Death) -> None:
        """Take a death back: the engine was only out of reach."""
        self._rule.take_back(death)
        for client in list(self._accused):
            if client not in self._rule:
                self._clear(client)
        self._settle_doubts()

    def holds(self, client: ClientRequest) -> bool:
        """Whether a request has to wait although there may be an engine."""
        if client in self._doubtful:
            return True
        if client not in self._held:
            return False
        return client is not self._held[0] or len(self._accused) > len(self._held)

    def awaits_turn(self, client: ClientRequest) -> bool:
        """Whether a request is held only until those before it have shown that they are harmless."""
        return self.holds(client) and client not in self._doubtful

    def let_go(self, client: ClientRequest) -> None:
        """Hold a suspect no longer, although its turn has not come; it stays accused."""
        self._held.remove(client)

    def watch(self, client: ClientRequest, sequences: Iterable[OpenSequence]) -> None:
        """Note that sequences of an accused request are about to go on."""
        for sequence in sequences:
            sequence.watched = True
            self._accused[client].append((sequence, len(sequence.token_ids) + MIN_PROGRESS_TOKENS))

    def drop(self, client: ClientRequest) -> None:
        """Forget a request that has ended."""
        if client in self._accused:
            self._clear(client)

    def look(self) -> None:
        """Clear the requests that got on; call it several times a second while there are any."""
        for client, watched in list(self._accused.items()):
            if not client.displaced and all(_got_on(sequence, goal) for sequence, goal in watched):
                self._clear(client)

    def _settle_doubts(self) -> None:
        """Keep waiting only those against whom several deaths speak, some of them uncertain."""
        accused = [client for client in self._doubtful if self._rule.num_deaths(client) > 1]
        self._suspect(client for client in accused if self._rule.are_certain(client))
        self._doubtful = [client for client in accused if not self._rule.are_certain(client)]

    def _suspect(self, clients: Iterable[ClientRequest]) -> None:
        self._held += [client for client in clients if client not in self._held]

    def _clear(self, client: ClientRequest) -> None:
        for sequence, _ in self._accused.pop(client):
            sequence.watched = False
        for sequence in client.displaced:
            sequence.watched = False
        self._rule.forget([client])
        for waiting in (self._held, self._doubtful):
            if client in waiting:
                waiting.remove(client)


def _got_on(sequence: OpenSequence, goal: int) -> bool:
    is_over = sequence.has_ended or sequence.place is None
    return is_over or len(sequence.token_ids) >= goal

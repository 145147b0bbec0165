"""How often did peers misbehave? Counted, and logged once per peer, so a hostile one cannot flood the log."""

from __future__ import annotations

import logging
from collections import OrderedDict

from splitserve.engine_core.process.logs import log_event

_log = logging.getLogger("engine_core")

MAX_PEERS_REMEMBERED = 1024


class PeerFaults:
    """Counts invalid messages; owned by the busy loop's thread.

    Remembers the last 1024 peers it complained about; a peer forgotten since then is logged again.
    """

    def __init__(self) -> None:
        self.num_protocol_errors = 0
        self._logged: OrderedDict[bytes, None] = OrderedDict()

    def protocol_error(self, identity: bytes, name: str, error: Exception) -> None:
        """Count an invalid message."""
        self.num_protocol_errors += 1
        self._log_once(identity, "invalid message", name, str(error))

    def stranger(self, identity: bytes, what: str) -> None:
        """Count a message from a peer that has not sent a Hello, or whose lease has expired."""
        self.num_protocol_errors += 1
        self._log_once(identity, "message before hello", identity.hex(), what)

    def _log_once(self, identity: bytes, event: str, name: str, detail: str) -> None:
        if identity in self._logged:
            return
        self._logged[identity] = None
        if len(self._logged) > MAX_PEERS_REMEMBERED:
            self._logged.popitem(last=False)
        log_event(_log, logging.WARNING, event, peer=name, detail=detail)

"""How a process shows the one that started it that its main loop still turns.

They share a page with a slot of three numbers per child: how often its loop came round, how long it may take
until the next time, and whether the child serves. The loop alone writes there, not a thread of its own, which
would keep vouching for a loop that hangs. A child whose slot is all 0 is not watched: before its loop runs it
imports and downloads, for which there is no limit.

The watcher compares counts, not clocks, and measures with its own: what it slept through, because the machine
or it was stopped, is held against nobody.
"""

from __future__ import annotations

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.shared_memory import create_words, map_words

# How often an idle loop comes round, and how often somebody looks.
BEAT_INTERVAL_S = 0.5
LOOK_INTERVAL_S = 0.25
# Of the time between two looks, what counts: one that is later was delayed itself.
MAX_GAP_S = 2 * LOOK_INTERVAL_S
MAX_SLOTS = 1024

_BEATS, _LIMIT_MS, _SERVES, _NUM_WORDS = 0, 1, 2, 3


class HeartbeatPage:
    """The slots, numbered from 0 on; the descriptor `fd` can be inherited."""

    def __init__(self, fd: int) -> None:
        """Map what create() made, here or in the process that inherited the descriptor.

        Raises:
            ConfigError: the descriptor is something else.
        """
        self.fd = fd
        self.words = map_words(fd, MAX_SLOTS * _NUM_WORDS, "the heartbeats of a launch")

    @classmethod
    def create(cls, num_slots: int) -> HeartbeatPage:
        """Allocate slots, none of which is watched yet.

        Raises:
            ConfigError: the system is out of memory or file descriptors.
        """
        return cls(create_words("splitserve-heartbeats", num_slots * _NUM_WORDS))

    def __len__(self) -> int:
        return len(self.words) // _NUM_WORDS

    def num_beats(self, slot: int) -> int:
        """Return how often the loop of this slot came round."""
        return self.words[slot * _NUM_WORDS + _BEATS]

    def limit_s(self, slot: int) -> float:
        """Return how long it may be silent, in seconds; 0 if it is not watched."""
        return self.words[slot * _NUM_WORDS + _LIMIT_MS] / 1000

    def serves(self, slot: int) -> bool:
        """Whether the child said that it serves."""
        return bool(self.words[slot * _NUM_WORDS + _SERVES])

    def limit(self, slot: int, limit_s: float) -> None:
        """Set how long it may be silent before its loop has set a limit of its own."""
        self.words[slot * _NUM_WORDS + _LIMIT_MS] = round(limit_s * 1000)

    def clear(self, slot: int) -> None:
        """Forget a child that ended, before the next one uses its slot."""
        for word in range(slot * _NUM_WORDS, (slot + 1) * _NUM_WORDS):
            self.words[word] = 0


class Heart:
    """What a child's loop tells whoever started it; belongs to the thread of the loop.

    Attributes:
        interval_s: the loop must come round at least this often; inf if nobody watches.
    """

    def __init__(self, limit_s: float, page: HeartbeatPage | None = None, slot: int = 0) -> None:
        """Prepare it; the slot is watched from the first beat on.

        Args:
            limit_s: longest silence.
            page: None if nobody watches.
            slot: of this child.
        """
        self.interval_s = float("inf") if page is None else BEAT_INTERVAL_S
        self._words = memoryview(bytearray(8 * _NUM_WORDS)).cast("q") if page is None else page.words
        self._first = 0 if page is None else slot * _NUM_WORDS
        self._num_beats = 0
        self._limit_ms = 0
        self._limit_is_stale = True
        self.limit(limit_s)

    def beat(self) -> None:
        """Tell that the loop came round."""
        self._count()
        if self._limit_is_stale:
            self._limit_is_stale = False
            self._words[self._first + _LIMIT_MS] = self._limit_ms

    def limit(self, silence_s: float) -> None:
        """Set the longest silence from the next beat on, in seconds."""
        limit_ms = max(1, round(silence_s * 1000))
        if limit_ms != self._limit_ms:
            self._limit_ms = limit_ms
            self._limit_is_stale = True

    def announce(self, silence_s: float) -> None:
        """Announce a phase in which the loop does not come round for so long; it ends with the next beat."""
        self._words[self._first + _LIMIT_MS] = max(1, round(silence_s * 1000))
        self._limit_is_stale = True
        self._count()

    def serve(self, serves: bool) -> None:
        """Tell whether this process serves."""
        self._words[self._first + _SERVES] = serves

    def leave(self) -> None:
        """End being watched: the loop has ended in order, and whoever asked for it waits only so long."""
        self._words[self._first + _LIMIT_MS] = 0
        self._limit_is_stale = False

    def _count(self) -> None:
        self._num_beats += 1
        self._words[self._first] = self._num_beats


def join_heartbeats(fd: int | None, slot: int, limit_s: float) -> Heart:
    """Return the heart of a child that was given a page, or one that nobody watches.

    Args:
        fd: as inherited, None for a process that was started by itself.
        slot: of this process.
        limit_s: longest silence.

    Raises:
        ConfigError: the descriptor holds no page, or no such slot.
    """
    if fd is None:
        return Heart(limit_s)
    page = HeartbeatPage(fd)
    if slot >= len(page):
        raise ConfigError(f"the page of heartbeats has {len(page)} slots, none of number {slot}")
    return Heart(limit_s, page, slot)


class HeartbeatWatch:
    """Whose loop stands still? Belongs to the one process that made the page."""

    def __init__(self, page: HeartbeatPage) -> None:
        self._page = page
        self._looked_s: float | None = None
        self._num_beats = [0] * len(page)
        self._silent_s = [0.0] * len(page)

    def forget(self, slot: int) -> None:
        """Begin anew with a slot, since another child uses it from now on."""
        self._page.clear(slot)
        self._num_beats[slot] = 0
        self._silent_s[slot] = 0.0

    def expect(self, slot: int, limit_s: float) -> None:
        """Watch a slot whose child is about to run its loop; call it before the child is told to."""
        self._page.limit(slot, limit_s)

    def look(self, now_s: float) -> list[int]:
        """Return the slots that have been silent for longer than they may; call it every LOOK_INTERVAL_S."""
        gap_s = min(now_s - self._looked_s, MAX_GAP_S) if self._looked_s is not None else 0.0
        self._looked_s = now_s
        return [slot for slot in range(len(self._page)) if self._is_late(slot, gap_s)]

    def _is_late(self, slot: int, gap_s: float) -> bool:
        num_beats, limit_s = self._page.num_beats(slot), self._page.limit_s(slot)
        if num_beats != self._num_beats[slot] or limit_s == 0:
            self._num_beats[slot] = num_beats
            self._silent_s[slot] = 0.0
            return False
        self._silent_s[slot] += gap_s
        return self._silent_s[slot] > limit_s

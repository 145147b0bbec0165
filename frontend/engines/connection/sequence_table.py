"""The open sequences of one engine: what has arrived for each, and which streams to notify; no I/O.

    a sequence enters by    add(), or adopt() if another engine ran it before
    and leaves by           the engine's end of it (receive), fail(), remove(); release() to go on elsewhere

However it leaves, it is first taken back from native code, and its stream is notified unless it was removed.
A stream that is notified of a release finds nothing new, or what native code had not written yet.
The session decides whether the engine is alive and whether a message belongs to its current epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from splitserve.engine_core.errors import ProtocolError, SplitServeError
from splitserve.engine_core.ipc.codec import unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import AddRequest, Finished, FinishReason, StepOutputs
from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.frontend.engines.connection.errors import finished_error
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.token_relay import TokenRelay

# Streams notified before the event loop gets to run: ending one costs 0.3 ms.
MAX_WAKES_PER_TURN = 32


class GivenUp(NamedTuple):
    """Sequences that are no longer open although the engine has not finished them.

    Attributes:
        faulty: their outputs are inconsistent, and the engine must abort them. Those without an error lack
            tokens that were lost, and may go on elsewhere.
        handed_back: the engine has aborted them, which nobody here had asked for.
    """

    faulty: list[OpenSequence]
    handed_back: list[OpenSequence]


NOTHING = GivenUp([], [])


class SequenceTable:
    """Sequences by handle; belongs to one event loop. The owner limits their number.

    Attributes:
        stale_outputs: rows for sequences that are not open, and messages of an earlier epoch.
        num_out_of_order: tokens that were repeated or came after a gap.
    """

    def __init__(self) -> None:
        self.stale_outputs = 0
        self.num_out_of_order = 0
        self._sequences: dict[int, OpenSequence] = {}
        self._relay = TokenRelay()
        # Sequences of one request share a callable, which takes the output of all of them.
        self._to_wake: dict[Callable[[], None], None] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, handle: object) -> bool:
        return handle in self._sequences

    def __iter__(self) -> Iterator[OpenSequence]:
        return iter(self._sequences.values())

    def __getitem__(self, handle: int) -> OpenSequence:
        return self._sequences[handle]

    @property
    def num_relayed(self) -> int:
        """Number of sequences that native code is writing."""
        return self._relay.num_streams

    def add(self, request: AddRequest, wake: Callable[[], None]) -> OpenSequence:
        """Open a sequence; `wake` is called when outputs arrive. The request's handle must not be in use."""
        sequence = OpenSequence(request, wake)
        self.adopt(sequence, request.handle)
        return sequence

    def adopt(self, sequence: OpenSequence, handle: int) -> None:
        """Take over a sequence that is in no table; its output continues where it is. See add()."""
        sequence.handle, sequence.relay, sequence.is_running = handle, self._relay, False
        self._sequences[handle] = sequence

    def release(self, handles: Iterable[int] | None = None) -> list[OpenSequence]:
        """Give up sequences alive, all of them unless some are named; return those that were open."""
        released = []
        for handle in list(self._sequences) if handles is None else handles:
            sequence = self._sequences.pop(handle, None)
            if sequence is not None:
                sequence.recall()
                sequence.relay = None
                self._to_wake[sequence.wake] = None
                released.append(sequence)
        return released

    def remove(self, handles: Iterable[int]) -> list[int]:
        """Drop sequences whose stream is closed; return the handles of those that were still open."""
        known = []
        for handle in handles:
            sequence = self._sequences.pop(handle, None)
            if sequence is not None:
                sequence.recall()
                known.append(handle)
        return known

    def fail(self, handle: int, error: SplitServeError) -> None:
        """End one sequence with an error, if it is open."""
        sequence = self._sequences.pop(handle, None)
        if sequence is not None:
            self._end(sequence, error)

    def receive(self, outputs: StepOutputs) -> GivenUp:
        """Process a message of the engine's current epoch; call wake_up() afterwards.

        Returns:
            What is no longer open although it has not ended.

        Raises:
            ProtocolError: its columns do not match each other; nothing was applied.
        """
        sizes = len(outputs.handles), len(outputs.token_ids), len(outputs.token_indices)
        num_rows = sizes[0] // 8
        if sizes != (8 * num_rows, 4 * num_rows, 4 * num_rows):
            raise ProtocolError(f"handles, token ids and indices have {sizes} bytes: not equally many rows")
        faulty: list[OpenSequence] = []
        self._add_logprobs(outputs)
        for entry in outputs.prompt_logprobs:
            faulty += self._add_prompt_logprobs(entry)
        for vector in outputs.pooled:
            sequence = self._sequences.get(vector.key)
            if sequence is not None:
                sequence.pooled = vector.values
        for drafted in outputs.drafted:
            sequence = self._sequences.get(drafted.handle)
            if sequence is not None:
                sequence.add_drafted(drafted)
        rows = self._relay.add(outputs.handles, outputs.token_ids, outputs.token_indices, num_rows)
        if rows:
            faulty += self._add_tokens(outputs, rows)
        handed_back: list[OpenSequence] = []
        for end in outputs.finished:
            if end.reason is FinishReason.ABORT:
                handed_back += self.release([end.handle])
            else:
                self._finish(end)
        return GivenUp(faulty, handed_back) if faulty or handed_back else NOTHING

    def wake_up(self, now_s: float) -> bool:
        """Notify streams of tokens, an end or an error; a stream that is behind gets everything at once.

        Streams that native code serves are written; of the others at most 32 are notified.

        Args:
            now_s: monotonic time.

        Returns:
            Whether some are still waiting, so that this has to be called again.
        """
        for wake in list(islice(self._to_wake, MAX_WAKES_PER_TURN)):
            del self._to_wake[wake]
            wake()
        num_waiting, blocked = self._relay.flush(now_s)
        for handle in blocked:
            sequence = self._sequences[handle]
            sequence.recall()
            sequence.wake()
        return bool(self._to_wake or num_waiting)

    def _add_tokens(self, outputs: StepOutputs, rows: Sequence[int]) -> list[OpenSequence]:
        """Process the rows that native code did not take."""
        handles = unpack_int64(outputs.handles).tolist()
        token_ids = unpack_int32(outputs.token_ids).tolist()
        indices = unpack_int32(outputs.token_indices).tolist()
        find, to_wake = self._sequences.get, self._to_wake
        given_up: list[OpenSequence] = []
        for row in rows:
            sequence = find(handles[row])
            if sequence is None:
                # Normal for a moment after an abort.
                self.stale_outputs += 1
            elif indices[row] == len(sequence.token_ids) and sequence.relayed is None:
                sequence.token_ids.append(token_ids[row])
                to_wake[sequence.wake] = None
            else:
                given_up += self._mend(sequence, indices[row])
        return given_up

    def _add_logprobs(self, outputs: StepOutputs) -> None:
        find = self._sequences.get
        for started in outputs.started:
            sequence = find(started.handle)
            if sequence is None:
                continue
            sequence.is_running = True
            if not sequence.has_started:
                # What a later engine says of it is how well it was resumed, not how the request was served.
                sequence.has_started = True
                sequence.num_cached_tokens = started.num_cached_tokens
                sequence.queue_time_s = started.queue_time_s
        for entry in outputs.logprobs:
            sequence = find(entry.key)
            # As its token, it may be repeated, or come after a gap.
            if sequence is not None and entry.token_index == sequence.num_taken + len(sequence.logprobs):
                sequence.logprobs.append(entry)

    def _add_prompt_logprobs(self, entry: TokenLogprobs) -> list[OpenSequence]:
        sequence = self._sequences.get(entry.key)
        if sequence is None:
            return []
        try:
            sequence.add_prompt_logprobs(entry)
        except ProtocolError as error:
            self.fail(entry.key, error)
            return [sequence]
        return []

    def _mend(self, sequence: OpenSequence, index: int) -> list[OpenSequence]:
        """Drop a repeated token; a gap cannot be repaired: release the sequence and return it."""
        self.num_out_of_order += 1
        sequence.recall()
        # Notified in any case: it may have been taken back with unwritten tokens.
        self._to_wake[sequence.wake] = None
        return [] if index <= len(sequence.token_ids) else self.release([sequence.handle])

    def _finish(self, end: Finished) -> None:
        sequence = self._sequences.pop(end.handle, None)
        if sequence is not None:
            if not sequence.has_started:
                sequence.num_cached_tokens = end.num_cached_tokens
            sequence.finished = end
            self._end(sequence, finished_error(end))

    def _end(self, sequence: OpenSequence, error: SplitServeError | None) -> None:
        sequence.recall()
        sequence.error = error
        self._to_wake[sequence.wake] = None

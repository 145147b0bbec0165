"""Does every row's block table hold the KV of its own tokens? A model of the paged cache's content.

A real cache holds vectors; this one holds (token id, position) per slot. What a worker would compute is right
exactly when each attended slot holds the row's own token of that position, so a block freed too early, shared
wrongly, saved or loaded in the wrong order, or a prefix hit that is not one is seen in the step that would
have gone wrong. Blocks of the CPU offload tier stand behind those of the pool; only moves touch them. With a
sliding window a row attends to, and holds, what its next token sees only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import WorkerError

# Stands for a block that has left the window, also in messages.
LEFT = -1
_GROUP_STRIDE = 2**20


class ShadowKV:
    """Block tables and tokens of each row, and the content of every slot.

    All methods raise WorkerError when the engine breaks the protocol.
    """

    def __init__(
        self, num_blocks: int, block_size: int, sliding_window: int = 0, num_host_blocks: int = 0
    ) -> None:
        self._num_blocks = num_blocks
        self._window = sliding_window
        self._block_size = block_size
        num_slots = (num_blocks + num_host_blocks) * block_size
        self._token = np.full(num_slots, -1, np.int32)
        self._position = np.full(num_slots, -1, np.int32)
        self._first_position = 0
        self._tables: dict[int, list[int]] = {}
        self._tokens: dict[int, list[int]] = {}
        self._num_tables_with: Counter[int] = Counter()

    def of_group(self, group: int, sliding_window: int) -> ShadowKV:
        """Return the tables of another group of layers, with the same slots; it tells its content apart."""
        other = ShadowKV(0, self._block_size, sliding_window)
        other._num_blocks, other._num_tables_with = self._num_blocks, self._num_tables_with
        other._token, other._position = self._token, self._position
        # No position of one group is one of another.
        other._first_position = group * _GROUP_STRIDE * self._block_size
        return other

    def free_row(self, row: int) -> None:
        """Forget a row's table; the content of its blocks stays, as prefixes may be found again."""
        if row not in self._tables:
            raise WorkerError(f"row {row} is freed but was free")
        self._num_tables_with.subtract(block for block in self._tables.pop(row) if block != LEFT)
        del self._tokens[row]

    def new_row(self, row: int, token_ids: list[int], block_ids: Iterable[int], first_block: int = 0) -> None:
        """Enter a row with all its known tokens, and its blocks from place first_block on."""
        if row in self._tables:
            raise WorkerError(f"row {row} is new but was not free")
        if not token_ids:
            raise WorkerError(f"row {row} is new and has no tokens")
        self._tables[row] = [LEFT] * first_block
        self._tokens[row] = token_ids
        for block_id in block_ids:
            self.append_block(row, block_id)

    def append_block(self, row: int, block_id: int) -> None:
        """Append a block to a row's table."""
        if row not in self._tables:
            raise WorkerError(f"block {block_id} is appended to row {row}, which is free")
        if not 0 <= block_id < self._num_blocks:
            raise WorkerError(f"row {row} is given block {block_id} of {self._num_blocks}")
        if block_id in self._tables[row]:
            raise WorkerError(f"row {row} is given block {block_id} twice")
        self._tables[row].append(block_id)
        self._num_tables_with[block_id] += 1

    def abandon(self, row: int) -> None:
        """Note that a failed row reads and writes its blocks no more, which the engine learns later."""
        self._leave(row, len(self._tables[row]))

    def move(self, source: int, target: int) -> None:
        """Copy a block between pool and offload tier; it must hold consecutive positions from a border on."""
        if (source < self._num_blocks) == (target < self._num_blocks):
            raise WorkerError(f"a move leads from place {source} to {target}, both on one side")
        from_slots, to_slots = self._slots_of(source), self._slots_of(target)
        positions = self._position[from_slots]
        first = int(positions[0])
        if first < 0 or first % self._block_size or (np.diff(positions) != 1).any():
            raise WorkerError(f"a move reads place {source}, which holds positions {positions.tolist()}")
        self._token[to_slots] = self._token[from_slots]
        self._position[to_slots] = positions

    def append_token(self, row: int, token_id: int) -> None:
        """Append the token a row sampled."""
        self._tokens[row].append(token_id)

    def check_last_token(self, row: int, token_id: int) -> None:
        """Check that the token the engine names for a row is the row's last one."""
        if self._tokens[row][-1] != token_id:
            raise WorkerError(f"row {row} is told token {token_id}, its last is {self._tokens[row][-1]}")

    def num_slots_of(self, row: int) -> int:
        """Return how many tokens fit a row's blocks."""
        return len(self._tables[row]) * self._block_size

    def compute_drafts(self, row: int, start: int, count: int, drafts: list[int]) -> npt.NDArray[np.int32]:
        """Like compute() for `count` tokens and, behind them, drafts, which are forgotten again.

        What leaves the window by drafts that count does so by keep().
        """
        tokens = self._tokens[row]
        num_tokens = len(tokens)
        tokens += drafts
        try:
            return self.compute(row, start, count + len(drafts), count)
        finally:
            del tokens[num_tokens:]

    def keep(self, row: int, num_computed: int) -> None:
        """Note that so many tokens of a row will not be computed again."""
        self._leave(row, self._first_seen(num_computed) // self._block_size)

    def compute(
        self, row: int, start: int, count: int, num_certain: int | None = None
    ) -> npt.NDArray[np.int32]:
        """Write the KV of `count` tokens from position `start` and attend to all that they see.

        Args:
            row: of the tokens.
            start: position of the first of them.
            count: tokens.
            num_certain: how many of them will not be computed again; None for all.

        Returns:
            The token ids found in the attended slots, and the row's own where the window has passed, int32
            [start + count].
        """
        end = start + count
        tokens = self._tokens[row]
        if end > len(tokens):
            raise WorkerError(f"row {row} is to compute up to token {end} but has {len(tokens)}")
        seen = self._first_seen(start)
        slots = self._slots(row, seen, end)
        self._check_writes(row, start, end)
        self._token[slots[start - seen :]] = tokens[start:end]
        positions = np.arange(seen, end) + self._first_position
        self._position[slots[start - seen :]] = positions[start - seen :]
        attended = self._token[slots]
        wrong = (attended != tokens[seen:end]) | (self._position[slots] != positions)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise WorkerError(
                f"row {row} attends to token {attended[at]} of position {self._position[slots[at]]}"
                f" where its token {tokens[seen + at]} of position {seen + at} should be"
            )
        self.keep(row, end if num_certain is None else start + num_certain)
        return np.concatenate([np.array(tokens[:seen], np.int32), attended])

    def _slots_of(self, place: int) -> slice:
        return slice(place * self._block_size, (place + 1) * self._block_size)

    def _first_seen(self, position: int) -> int:
        return max(0, position + 1 - self._window) if self._window else 0

    def _leave(self, row: int, end: int) -> None:
        """Forget the first blocks: other rows may write to them from now on."""
        table = self._tables[row]
        for place in range(end - 1, -1, -1):
            if table[place] == LEFT:
                break
            self._num_tables_with[table[place]] -= 1
            table[place] = LEFT

    def _slots(self, row: int, start: int, end: int) -> npt.NDArray[np.int64]:
        table = np.array(self._tables[row], np.int64)
        if len(table) * self._block_size < end:
            raise WorkerError(f"row {row} has {len(table)} blocks, too few for {end} tokens")
        positions = np.arange(start, end)
        if (table[start // self._block_size :] == LEFT).any():
            raise WorkerError(f"row {row} has no block for a position that token {start} sees")
        return table[positions // self._block_size] * self._block_size + positions % self._block_size

    def _check_writes(self, row: int, start: int, end: int) -> None:
        table = self._tables[row]
        for block_id in table[start // self._block_size : (end - 1) // self._block_size + 1]:
            if self._num_tables_with[block_id] > 1:
                raise WorkerError(f"row {row} writes to block {block_id}, which another row uses too")

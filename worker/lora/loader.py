"""Which adapters are being read beside the steps? One at a time, in a thread; another places them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from splitserve.engine_core.errors import ModelLoadError, WorkerError
from splitserve.engine_core.ipc.worker_messages import AdapterLoaded, LoadAdapter
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.layers.adapters.adapters import Adapters
from splitserve.worker.lora.reading import AdapterReader, ReadAdapter

logger = logging.getLogger(__name__)


class _Done(NamedTuple):
    """An adapter that was read, or why it could not be."""

    asker: int
    message: LoadAdapter
    read: ReadAdapter | None
    error: str


class AdapterLoader:
    """Reads adapters in a thread of its own; all methods belong to the model's thread.

    Args:
        adapters: of the model; None if there can be none.
        dtype: of the activations.

    Attributes:
        done_fd: readable when take_done() may return something; -1 before the first ask().
    """

    def __init__(self, adapters: Adapters | None, dtype: torch.dtype) -> None:
        self._adapters = adapters
        self._dtype = dtype
        self._thread: ThreadPoolExecutor | None = None
        self._num_asked = 0
        # Of those who asked: an engine that is gone asked before this one.
        self._asker = 0
        self._done: deque[_Done] = deque()
        self.done_fd = -1

    @property
    def is_busy(self) -> bool:
        """Whether some answer is still due."""
        return self._num_asked > 0

    def ask(self, message: LoadAdapter) -> None:
        """Read an adapter in the background; take_done() will return the answer.

        Raises:
            WorkerError: there is no such slot.
        """
        reader = self._reader_for(message)
        if self._thread is None:
            self.done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._thread = ThreadPoolExecutor(1, "adapters")
        self._num_asked += 1
        self._thread.submit(self._read_for, reader, self._asker, message)

    def forget_asks(self) -> None:
        """Answer nobody: who asked is gone, and no slot is changed for them."""
        self._asker += 1
        self._num_asked = 0

    def load(self, message: LoadAdapter) -> AdapterLoaded:
        """Read an adapter now, and put it into its slot.

        Raises:
            WorkerError: there is no such slot.
        """
        return self._place(_read(self._reader_for(message), 0, message))

    def take_done(self) -> list[AdapterLoaded]:
        """Put the adapters that were read into their slots, which no row uses; return the answers."""
        if self.done_fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.done_fd)
        answers = []
        while self._done:
            done = self._done.popleft()
            if done.asker == self._asker:
                answers.append(self._place(done))
        self._num_asked -= len(answers)
        return answers

    def close(self) -> None:
        """End the thread; an adapter that is being read is finished first."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
            os.close(self.done_fd)

    def _reader_for(self, message: LoadAdapter) -> AdapterReader:
        if self._adapters is None or not 0 <= message.slot < self._adapters.limits.num_slots:
            raise WorkerError(f"there is no slot {message.slot} for adapters")
        return AdapterReader(self._adapters, self._dtype)

    def _read_for(self, reader: AdapterReader, asker: int, message: LoadAdapter) -> None:
        self._done.append(_read(reader, asker, message))
        os.eventfd_write(self.done_fd, 1)

    def _place(self, done: _Done) -> AdapterLoaded:
        number, slot = done.message.number, done.message.slot
        if done.read is None or self._adapters is None:
            return AdapterLoaded(number, error=done.error)
        self._adapters.fill(slot, done.read.deltas)
        return AdapterLoaded(number, done.read.digest)


def _read(reader: AdapterReader, asker: int, message: LoadAdapter) -> _Done:
    try:
        return _Done(asker, message, reader.read(Path(message.path)), "")
    except ModelLoadError as refused:
        return _Done(asker, message, None, str(refused))
    except Exception as unexpected:
        log_event(logger, logging.ERROR, "adapter_failed", unexpected)
        return _Done(asker, message, None, f"{type(unexpected).__name__}: {unexpected}")

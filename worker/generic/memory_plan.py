"""Which nodes of a traced step have to run, and where in one buffer the tensors between them lie."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from splitserve.worker.generic.tracing import (
    Launch,
    Node,
    Operation,
    changes,
    is_empty,
    storage_of,
    tensors_in,
)

_ALIGNMENT = 64


@dataclass(slots=True)
class _Life:
    """First and last node that uses the memory of some tensors."""

    num_bytes: int
    first: int
    last: int


@dataclass(slots=True)
class MemoryPlan:
    """Places of what a step makes, by storage; all other storages stay where they are.

    Attributes:
        nodes: those that run, in order.
        offsets: bytes from the buffer's start.
        num_bytes: of the buffer.
    """

    nodes: list[Node]
    offsets: dict[int, int] = field(default_factory=dict)
    num_bytes: int = 0

    def place(self, tensor: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        """Return the tensor that stands for one of the trace; `buffer` is uint8 [num_bytes]."""
        offset = self.offsets.get(storage_of(tensor))
        if offset is None:
            return tensor
        first = offset // tensor.dtype.itemsize + tensor.storage_offset()
        return buffer.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), first)


def plan_memory(nodes: list[Node], results: torch.Tensor) -> MemoryPlan:
    """Leave out what nobody needs, and give memory that is no longer used to what comes later.

    Args:
        nodes: of a trace.
        results: what the step is run for.
    """
    made = _made(nodes)
    kept = _needed(nodes, made, storage_of(results))
    lives: dict[int, _Life] = {}
    for index, node in enumerate(kept):
        for tensor in _tensors(node):
            key = storage_of(tensor)
            if key in made:
                size = tensor.untyped_storage().nbytes()
                lives.setdefault(key, _Life(size, index, index)).last = index
    lives[storage_of(results)].last = len(kept)
    plan = MemoryPlan(kept)
    _lay_out(plan, lives)
    return plan


def _tensors(node: Node) -> list[torch.Tensor]:
    if isinstance(node, Launch):
        return list(node.tensors)
    return list(tensors_in(node.args, node.kwargs, node.made))


def _made(nodes: list[Node]) -> set[int]:
    """Return the storages that a step fills anew: all but what is made of nothing, such as a range."""
    changed = {
        storage_of(tensor)
        for node in nodes
        if isinstance(node, Launch) or changes(node)
        for tensor in _tensors(node)
    }
    known: set[int] = set()
    made: set[int] = set()
    for node in nodes:
        if isinstance(node, Operation):
            inputs = set(map(storage_of, tensors_in(node.args, node.kwargs)))
            new = set(map(storage_of, tensors_in(node.made))) - inputs - known
            if inputs or is_empty(node) or new & changed:
                made |= new
        known.update(map(storage_of, _tensors(node)))
    return made


def _needed(nodes: list[Node], made: set[int], results: int) -> list[Node]:
    """Return the nodes without those whose results nobody reads, and those that compute nothing."""
    needed = {results}
    kept = []
    for node in reversed(nodes):
        if isinstance(node, Operation):
            inputs = set(map(storage_of, tensors_in(node.args, node.kwargs)))
            written = set(map(storage_of, tensors_in(node.made))) - inputs
            if changes(node):
                written |= inputs
            if is_empty(node) or not written & needed & made:
                continue
        needed.update(map(storage_of, _tensors(node)))
        kept.append(node)
    return kept[::-1]


def _lay_out(plan: MemoryPlan, lives: dict[int, _Life]) -> None:
    """Give each storage the lowest place that is free as long as it lives."""
    live: list[tuple[int, int, int]] = []  # begin, end, last node
    for key, life in sorted(lives.items(), key=lambda item: item[1].first):
        live = [span for span in live if span[2] >= life.first]
        size = -(-max(1, life.num_bytes) // _ALIGNMENT) * _ALIGNMENT
        begin = 0
        for taken_begin, taken_end, _last in sorted(live):
            if begin + size <= taken_begin:
                break
            begin = max(begin, taken_end)
        live.append((begin, begin + size, life.last))
        plan.offsets[key] = begin
        plan.num_bytes = max(plan.num_bytes, begin + size)

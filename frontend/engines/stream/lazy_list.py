"""A list that creates its items when they are read, for items that take far more memory than their source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")
S = TypeVar("S")


class LazyList(Sequence[T], Generic[S, T]):
    """A read-only view of `items`, each converted by make() whenever it is read."""

    __slots__ = ("_items", "_make")

    def __init__(self, items: Sequence[S], make: Callable[[S], T]) -> None:
        """Create a view.

        Args:
            items: must not change any more.
            make: called each time an item is read.
        """
        self._items = items
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> LazyList[S, T]: ...
    def __getitem__(self, index: int | slice) -> T | LazyList[S, T]:
        if isinstance(index, slice):
            return LazyList(self._items[index], self._make)
        return self._make(self._items[index])

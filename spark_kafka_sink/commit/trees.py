"""An immutable tuple and an immutable set, of which a changed copy is cheap.

The state machine of a job gets several replies for each task, and each reply changes one item of a
tuple or a set that has an item for each task. A changed copy of a `tuple` or `frozenset` copies all
items, so the time for all replies would grow with the square of the number of tasks. Here the items
are the leaves of a tree, and each node of the tree has at most 32 children. A changed copy has new
nodes only from the root to the changed item, and shares all other nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Generic, Self, TypeVar

_WIDTH: Final = 32
# The number of items for each bucket of a new set, and the number at which it gets more buckets.
_PER_BUCKET: Final = 8
_MOST_PER_BUCKET: Final = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TreeTuple(Generic[T]):
    """An immutable tuple.

    root: the items, or a tree of tuples whose leaves are the items. span: the number of items below
    each child of the root; the last child may have fewer.
    """

    root: tuple[Any, ...]
    span: int

    @classmethod
    def of(cls, items: Iterable[T]) -> Self:
        """Return a tuple of `items`."""
        nodes: tuple[Any, ...] = tuple(items)
        span = 1
        while len(nodes) > _WIDTH:
            nodes = tuple(nodes[at : at + _WIDTH] for at in range(0, len(nodes), _WIDTH))
            span *= _WIDTH
        return cls(nodes, span)

    def __bool__(self) -> bool:
        return bool(self.root)

    def __iter__(self) -> Iterator[T]:
        nodes, span = self.root, self.span
        while span > 1:
            nodes = tuple(chain.from_iterable(nodes))
            span //= _WIDTH
        return iter(nodes)

    def __getitem__(self, index: int) -> T:
        node, span = self.root, self.span
        while span > 1:
            at, index = divmod(index, span)
            node, span = node[at], span // _WIDTH
        item: T = node[index]
        return item

    def replacing(self, index: int, item: T) -> Self:
        """Return a copy in which `item` is at `index`."""
        return type(self)(_replacing(self.root, self.span, index, item), self.span)


def _replacing(node: tuple[Any, ...], span: int, index: int, item: object) -> tuple[Any, ...]:
    at, index = divmod(index, span)
    child = item if span == 1 else _replacing(node[at], span // _WIDTH, index, item)
    return (*node[:at], child, *node[at + 1 :])


@dataclass(frozen=True, slots=True, eq=False)
class TreeSet(Generic[T]):
    """An immutable set. It is equal to any other TreeSet with the same items.

    buckets: sets whose union has all items; the hash of an item selects its bucket. count: the
    number of buckets. length: the number of items.
    """

    buckets: TreeTuple[frozenset[T]]
    count: int
    length: int

    @classmethod
    def of(cls, items: Iterable[T]) -> Self:
        """Return a set of `items`."""
        every = frozenset(items)
        count = max(1, len(every) // _PER_BUCKET)
        if count == 1:
            return cls(TreeTuple.of((every,)), count, len(every))
        buckets: list[list[T]] = [[] for _ in range(count)]
        for item in every:
            buckets[hash(item) % count].append(item)
        return cls(TreeTuple.of(map(frozenset, buckets)), count, len(every))

    def __contains__(self, item: object) -> bool:
        return item in self.buckets[self._place(item)]

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.buckets)

    def __len__(self) -> int:
        return self.length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeSet):
            return NotImplemented
        return self.length == other.length and all(item in other for item in self)

    def __hash__(self) -> int:
        return hash(frozenset(self))

    def including(self, item: T) -> Self:
        """Return a copy that also has `item`."""
        if self.length == self.count * _MOST_PER_BUCKET:
            return self.of((*self, item))
        return self._changed(item, self.buckets[self._place(item)] | {item})

    def without(self, item: T) -> Self:
        """Return a copy that does not have `item`."""
        return self._changed(item, self.buckets[self._place(item)] - {item})

    def _place(self, item: object) -> int:
        return hash(item) % self.count if self.count > 1 else 0

    def _changed(self, item: T, bucket: frozenset[T]) -> Self:
        place = self._place(item)
        length = self.length + len(bucket) - len(self.buckets[place])
        return type(self)(self.buckets.replacing(place, bucket), self.count, length)


NO_ITEMS: Final[TreeSet[Any]] = TreeSet.of(())

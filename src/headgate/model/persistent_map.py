"""Immutable sorted mapping whose changed copies share everything that did not change.

The scheduler receives the whole policy with each change, and a policy may have 100,000 tenants. This mapping makes such
a change cheap: a copy with one changed key copies one leaf, and `changes_since` finds the keys that differ between two
copies without visiting the leaves that they share.

Theory of operation. The items are divided into leaves of at most `LEAF_MAX` items, in the order of their keys. A lookup
finds the leaf by binary search over the first key of each leaf. The order of the keys also makes it cheap to find all
keys with a prefix, such as the descendants of a tenant.

Equal mappings may be divided differently, depending on their history. Everything that a caller can see depends only on
the items.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar, cast

LEAF_MAX: Final = 256
"""Maximum number of items in a leaf. A larger leaf is divided into halves."""


class Sortable(Protocol):
    """Key type: hashable, and ordered in the same way in every process."""

    def __lt__(self, other: Any, /) -> bool: ...

    def __hash__(self) -> int: ...


K = TypeVar("K", bound=Sortable)
V = TypeVar("V")


class _Leaf(Generic[K, V]):
    """Consecutive items. Never changed after its creation."""

    __slots__ = ("items", "keys")

    def __init__(self, keys: list[K], items: dict[K, V]) -> None:
        self.keys = keys
        """Keys in ascending order."""
        self.items = items


class PersistentMap(Generic[K, V]):
    """Immutable mapping, sorted by key. None is not a valid value."""

    __slots__ = ("firsts", "leaves", "length")

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        self.leaves: list[_Leaf[K, V]] = []
        self.firsts: list[K] = []
        """First key of each leaf."""
        self.length = 0
        if items:
            self.leaves = _divided(sorted(items), dict(items), LEAF_MAX // 2)
            self.firsts = [leaf.keys[0] for leaf in self.leaves]
            self.length = len(items)

    def get(self, key: K) -> V | None:
        place = bisect_right(self.firsts, key)
        return self.leaves[place - 1].items.get(key) if place else None

    def __getitem__(self, key: K) -> V:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[K]:
        for leaf in self.leaves:
            yield from leaf.keys

    def values(self) -> Iterator[V]:
        for leaf in self.leaves:
            for key in leaf.keys:
                yield leaf.items[key]

    def items(self) -> Iterator[tuple[K, V]]:
        for leaf in self.leaves:
            for key in leaf.keys:
                yield key, leaf.items[key]

    def between(self, low: K, high: K) -> Iterator[K]:
        """Yields the keys from `low` (inclusive) to `high` (exclusive)."""
        place = max(0, bisect_right(self.firsts, low) - 1)
        while place < len(self.leaves):
            keys = self.leaves[place].keys
            stop = bisect_left(keys, high)
            yield from keys[bisect_left(keys, low) : stop]
            if stop < len(keys):
                return
            place += 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PersistentMap):
            return NotImplemented
        earlier = cast("PersistentMap[K, V]", other)
        return self.length == earlier.length and not self.changes_since(earlier)

    def __hash__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Copying a compiled instance, also into another process, requires it.
        return PersistentMap, (dict(self.items()),)

    def updated(self, changes: Mapping[K, V | None]) -> "PersistentMap[K, V]":
        """Returns a copy with these values. A key with the value None is removed."""
        if not changes:
            return self
        if not self.leaves:
            return PersistentMap({key: value for key, value in changes.items() if value is not None})
        by_leaf: dict[int, list[K]] = {}
        for key in changes:
            by_leaf.setdefault(max(0, bisect_right(self.firsts, key) - 1), []).append(key)
        leaves: list[_Leaf[K, V]] = []
        length, done = self.length, 0
        for place in sorted(by_leaf):
            leaves += self.leaves[done:place]
            leaf, done = self.leaves[place], place + 1
            new = _changed_leaf(leaf, by_leaf[place], changes)
            length += len(new.keys) - len(leaf.keys)
            leaves += (new,) if len(new.keys) <= LEAF_MAX else _divided(new.keys, new.items, LEAF_MAX // 2)
        leaves += self.leaves[done:]
        copy: PersistentMap[K, V] = PersistentMap()
        copy.leaves = [leaf for leaf in leaves if leaf.keys]
        copy.firsts = [leaf.keys[0] for leaf in copy.leaves]
        copy.length = length
        return copy

    def changes_since(self, earlier: "PersistentMap[K, V]") -> dict[K, V | None]:
        """Returns the keys whose values differ, in ascending order, with their values here; None if removed."""
        if self is earlier:
            return {}
        new, old = _unshared(self, earlier), _unshared(earlier, self)
        changes: dict[K, V | None] = {}
        for key, value in new.items():
            before = old.get(key)
            # Most values are the same object as before, and comparing two values by equality is expensive.
            if before is not value and before != value:
                changes[key] = value
        gone = [key for key in old if key not in new]
        if not gone:
            return changes
        for key in gone:
            changes[key] = None
        return {key: changes[key] for key in sorted(changes)}


def _unshared(one: PersistentMap[K, V], other: PersistentMap[K, V]) -> dict[K, V]:
    """Returns the items of those leaves of `one` that `other` does not share, in ascending order."""
    items: dict[K, V] = {}
    theirs, firsts, place = other.leaves, other.firsts, 0
    for number, first in enumerate(one.firsts):
        leaf = one.leaves[number]
        while place < len(firsts) and firsts[place] < first:
            place += 1
        # A shared leaf has the same first key in both.
        if place == len(firsts) or theirs[place] is not leaf:
            for key in leaf.keys:
                items[key] = leaf.items[key]
    return items


def _changed_leaf(leaf: _Leaf[K, V], keys: list[K], changes: Mapping[K, V | None]) -> _Leaf[K, V]:
    items = dict(leaf.items)
    same_keys = True
    for key in keys:
        value = changes[key]
        if value is not None:
            same_keys = same_keys and key in items
            items[key] = value
        elif items.pop(key, None) is not None:
            same_keys = False
    return _Leaf(leaf.keys if same_keys else sorted(items), items)


def _divided(keys: list[K], items: dict[K, V], size: int) -> list[_Leaf[K, V]]:
    parts = (keys[start : start + size] for start in range(0, len(keys), size))
    return [_Leaf(part, {key: items[key] for key in part}) for part in parts]

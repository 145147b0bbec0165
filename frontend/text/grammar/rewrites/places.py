"""Where the schemas within a schema are, which stay there, and which are used at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from splitserve.frontend.text.grammar.json_schema import children, target_of, walk
from splitserve.frontend.text.grammar.rewrites.terms import listing, mapping

Json = Any
Node = Mapping[str, Json]

DEFINITIONS: Final = ("$defs", "definitions")
# Where schemas are that hold together with the one that they are in, or for what is in its values.
MAPS: Final = ("properties", "patternProperties", *DEFINITIONS)
LISTS: Final = ("allOf", "anyOf", "prefixItems", "items")
SINGLE: Final = ("items", "additionalItems", "additionalProperties")


class Places:
    """Of one schema.

    Attributes:
        paths: by id of every schema, its path and itself; those that only references lead to included.
    """

    def __init__(self, root: Node) -> None:
        """Look at all of a schema."""
        self.paths = {id(node): (path, node) for path, node in walk(root)}
        waiting = list(self.paths.values())
        while waiting:
            target = target_of(root, waiting.pop()[1])
            if target is not None and id(target) not in self.paths:
                found = {id(node): (path, node) for path, node in walk(target) if id(node) not in self.paths}
                self.paths |= found
                waiting += found.values()
        self._staying = {id(node) for node in _staying(root)}
        # Who names a schema in another way than by a pointer may mean any.
        is_clear = all("$ref" not in node or target_of(root, node) is not None for node in self.nodes())
        self._used = {id(node) for node in _used(root)} if is_clear else set(self.paths)

    def nodes(self) -> list[Node]:
        """Return all schemas, the whole one first."""
        return [node for _, node in self.paths.values()]

    def stays(self, node: Node) -> bool:
        """Tell whether pointers to a schema stay what they are when it is rewritten."""
        return id(node) in self._staying

    def is_used(self, node: Node) -> bool:
        """Tell whether a schema is part of the whole, not a definition that nobody needs."""
        return id(node) in self._used


def _staying(root: Node) -> Iterator[Node]:
    waiting: list[Json] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            for key in MAPS:
                waiting += mapping(node.get(key)).values()
            # Those of allOf and anyOf are rewritten for where they are.
            for key in ("items", "prefixItems"):
                waiting += listing(node.get(key))
            waiting += [node[key] for key in SINGLE if key in node]


def _used(root: Node) -> Iterator[Node]:
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        within = (child for path, child in children(node) if path.partition(".")[0] not in DEFINITIONS)
        waiting += [each for each in (*within, target_of(root, node)) if isinstance(each, dict)]

"""Look-up in a radix tree whose edges are runs of whole blocks.

A node holds one run without a branch; where two prompts part, the node is split between two blocks.  No hash decides
anything: children are told apart by the tokens of their first block.
"""

from __future__ import annotations

from collections.abc import Sequence

from .entries import Entry, Tokens


class Node:
    """A run of consecutive blocks; ``children`` by the tokens of their first block."""

    __slots__ = ("children", "parent", "run")

    def __init__(self, parent: Node | None) -> None:
        self.parent = parent
        self.run: list[Entry] = []
        self.children: dict[Tokens, Node] = {}


class TreeLookup:
    """Implements ``Lookup``; an entry's ``place`` is its node and its index there.  One root per salt."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._roots: dict[str, Node] = {}

    @property
    def num_nodes(self) -> int:
        """Nodes that hold blocks."""
        stack, count = list(self._roots.values()), -len(self._roots)
        while stack:
            count += 1
            stack.extend(stack.pop().children.values())
        return count

    def child(self, parent: Entry | None, salt: str, tokens: Tokens) -> Entry | None:
        node, index = parent.place if parent else (self._roots.get(salt), -1)
        if node is None:
            return None
        if index + 1 < len(node.run):
            following: Entry = node.run[index + 1]
            return following if following.tokens == tokens else None
        below = node.children.get(tokens)
        return below.run[0] if below else None

    def walk(self, salt: str, token_ids: Sequence[int], limit: int) -> list[Entry]:
        size, found = self._block_size, list[Entry]()
        node = self._roots.get(salt)
        while node is not None and len(found) < limit:
            start = len(found) * size
            node = node.children.get(tuple(token_ids[start : start + size]))
            for entry in node.run if node else ():
                start = len(found) * size
                if len(found) == limit or entry.tokens != tuple(token_ids[start : start + size]):
                    return found
                found.append(entry)
        return found

    def insert(self, entry: Entry) -> None:
        if entry.parent is None:
            node = self._roots.setdefault(entry.salt, Node(None))
        else:
            node, index = entry.parent.place
            if index + 1 < len(node.run):
                self._split(node, index + 1)
            elif not node.children:
                self._append(node, entry)
                return
        below = node.children[entry.tokens] = Node(node)
        self._append(below, entry)

    @staticmethod
    def _append(node: Node, entry: Entry) -> None:
        entry.place = (node, len(node.run))
        node.run.append(entry)

    def _split(self, node: Node, at: int) -> None:
        """Keep the first ``at`` blocks in ``node`` and move the rest, with all children, into a node below."""
        below = Node(node)
        below.children, node.children = node.children, {node.run[at].tokens: below}
        for child in below.children.values():
            child.parent = below
        node.run, moved = node.run[:at], node.run[at:]
        for entry in moved:
            self._append(below, entry)

    def remove(self, entry: Entry) -> None:
        node, index = entry.place
        assert index == len(node.run) - 1 and not node.children, "only the end of a chain can be removed"
        node.run.pop()
        if not node.run:
            del node.parent.children[entry.tokens]
            if not node.parent.children and node.parent is self._roots.get(entry.salt):
                del self._roots[entry.salt]

    def clear(self) -> None:
        self._roots.clear()

    def check(self) -> None:
        for salt, root in self._roots.items():
            assert root.children and not root.run, "an empty root is kept"
            stack = list(root.children.values())
            while stack:
                node = stack.pop()
                assert node.run and node.parent is not None and node.parent.children[node.run[0].tokens] is node
                for index, entry in enumerate(node.run):
                    before = node.run[index - 1] if index else (node.parent.run[-1] if node.parent.run else None)
                    assert entry.place == (node, index) and entry.parent is before and entry.salt == salt
                stack.extend(node.children.values())

"""Pages: who uses which page of the KV pool, and which token prefixes are already in it."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int32


class PagePool:
    """Reference counts and free list of the pages of one shard.

    A page is held once by every slot that reads or writes it and once by the prefix tree while the tree lists it.
    """

    def __init__(self, pages: int):
        self.references = np.zeros(pages, np.int32)
        self._free = list(range(pages - 1, -1, -1))

    @property
    def free(self) -> int:
        """Number of pages nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A free page, held once by the caller.

        Raises:
            IndexError: If no page is free; ask `free` first.
        """
        page = self._free.pop()
        self.references[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Count one more holder of a page in use."""
        self.references[page] += 1

    def release(self, page: int) -> None:
        """Count one holder less; the last one frees the page."""
        self.references[page] -= 1
        if self.references[page] == 0:
            self._free.append(page)
        elif self.references[page] < 0:
            raise AssertionError(f"Page {page} was released more often than it was held.")


@dataclasses.dataclass(eq=False)
class _Node:
    """One page of a cached prefix: the tokens whose KV it holds, from its first entry on."""

    tokens: bytes
    page: int
    parent: "_Node | None"
    used: int = 0
    children: dict[bytes, "_Node"] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Match:
    """The longest cached prefix of a stream.

    Attributes:
        pages: Full pages, to be shared as they are.
        partial: A page whose first entries match, to be copied before it is written; None if there is none.
        length: Tokens covered in all.
    """

    pages: tuple[int, ...]
    partial: int | None
    length: int


class PrefixTree:
    """Cached prefixes as a tree of pages: samples of a group share their prompt, a next turn finds its history.

    Nodes below a full page are keyed by their tokens; a node with fewer tokens than a page is always a leaf.
    """

    def __init__(self, pool: PagePool, page_size: int):
        self._pool = pool
        self._page_size = page_size
        self._root = _Node(b"", -1, None)
        self._clock = 0

    def match(self, ids: Int32[np.ndarray, " T"]) -> Match:
        """Find the longest cached prefix of a stream and mark it as just used."""
        self._clock += 1
        node, pages = self._root, []
        for chunk in self._full_chunks(ids):
            child = node.children.get(chunk)
            if child is None:
                break
            child.used = self._clock
            pages.append(child.page)
            node = child
        start = len(pages) * self._page_size
        best, length = _longest_common(node.children.values(), ids[start : start + self._page_size])
        if best is None:
            return Match(tuple(pages), None, start)
        best.used = self._clock
        return Match(tuple(pages), best.page, start + length)

    def insert(self, ids: Int32[np.ndarray, " T"], pages: Sequence[int]) -> None:
        """List the pages that hold the KV of a stream; prefixes already listed keep the pages they have.

        Args:
            ids: Tokens whose KV is in the pages.
            pages: At least `ceil(len(ids) / page_size)` pages, held by the caller.
        """
        self._clock += 1
        node = self._root
        for index, chunk in enumerate(self._full_chunks(ids)):
            node = self._child(node, chunk, pages[index])
        full = len(ids) // self._page_size
        tail = ids[full * self._page_size :]
        if len(tail) and _longest_common(node.children.values(), tail)[1] < len(tail):
            self._child(node, _key(tail), pages[full])

    def _child(self, node: _Node, chunk: bytes, page: int) -> _Node:
        child = node.children.get(chunk)
        if child is None:
            for stale in [c for c in node.children.values() if c.page == page]:  # the same page, when it held less
                self._remove(stale)
            child = node.children[chunk] = _Node(chunk, page, node)
            self._pool.hold(page)
        child.used = self._clock
        return child

    def evict(self, wanted: int) -> None:
        """Drop the least recently used leaves nobody else holds until `wanted` pages are free, or none is left."""
        while self._pool.free < wanted:
            leaves = [n for n in self._nodes() if not n.children and self._pool.references[n.page] == 1]
            if not leaves:
                return
            leaves.sort(key=lambda n: n.used)
            for leaf in leaves[: wanted - self._pool.free]:
                self._remove(leaf)

    def clear(self) -> None:
        """Drop everything: the weights have changed."""
        for node in self._nodes():
            self._pool.release(node.page)
        self._root.children.clear()

    def __len__(self) -> int:
        """Number of pages listed."""
        return sum(1 for _ in self._nodes())

    def _remove(self, node: _Node) -> None:
        assert node.parent is not None and not node.children
        del node.parent.children[node.tokens]
        self._pool.release(node.page)

    def _nodes(self) -> Iterator[_Node]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _full_chunks(self, ids: np.ndarray) -> Iterator[bytes]:
        for start in range(0, len(ids) - self._page_size + 1, self._page_size):
            yield _key(ids[start : start + self._page_size])


def _key(ids: np.ndarray) -> bytes:
    return np.ascontiguousarray(ids, np.int32).tobytes()


def _longest_common(nodes, ids: np.ndarray) -> tuple[_Node | None, int]:
    """The node that agrees with the most leading tokens of `ids`, and with how many."""
    best, length = None, 0
    for node in nodes:
        tokens = np.frombuffer(node.tokens, np.int32)
        shared = min(len(tokens), len(ids))
        differs = tokens[:shared] != ids[:shared]
        common = int(differs.argmax()) if differs.any() else shared
        if common > length:
            best, length = node, common
    return best, length

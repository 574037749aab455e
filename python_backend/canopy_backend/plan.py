"""The plan of one request: what its first model step hands to the last one, beside the encoder's rows.

The first step decides for each item whether its vectors come from its own tree or from the node encoder, packs what
has to be encoded, and writes the plan as one tensor. The last step reads it and has a :class:`Tree` for every item,
whichever way its vectors came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from canopy_backend.encoding import ItemWindows, NodePlan, count_tokens, item_vectors, node_vectors, plan_nodes
from canopy_backend.errors import EncoderFailure, InvalidItem, InvalidRequest
from canopy_backend.fragments import Fragments, fragment
from canopy_backend.fragments.video import SEGMENT_MS
from canopy_backend.hierarchy import BRANCHING, Hierarchy, balanced
from canopy_backend.items import Item, VideoItem, has_pictures
from canopy_backend.limits import Limits
from canopy_backend.manifest import NodeEncoding
from canopy_backend.packing import PackedRows, row_width
from canopy_backend.placing import leaves_covered, place_sequences, windows_hold
from canopy_backend.qwen3vl.sight import SeenItem
from canopy_backend.tokenization import EncoderTokenizer, TokenCounter
from canopy_backend.tree import UNITS, Tree, content_hash, decode_tree, decode_trees

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

_MAGIC: Final = 0x4E4C5043
_VERSION: Final = 3
_ENCODINGS: Final[tuple[NodeEncoding, ...]] = ("separate", "contextual")
_HEAD_FIELDS: Final = 9  # magic, version, node encoding, items, window counts, windows, seen, seen items, dimension
_ITEM_FIELDS: Final = 4  # unit, branching, fragments, parts
#: Row of a part whose vector is in the plan, and not among the encoder's answers.
_SEEN: Final = -1

#: Encodes an item with pixels, given its place in the request, itself, its fragments and its nodes.
See: TypeAlias = Callable[[int, Item, Fragments, Hierarchy], SeenItem]


@dataclass(frozen=True, slots=True, eq=False)
class ItemPlan:
    """One item of a request.

    Attributes:
        fragments: Its fragments.
        hierarchy: The nodes over them.
        tokens: int32 ``[F + 1]``, the reader's tokens of each fragment and then of the prefix.
        parts: int32 ``[P, 4]``, one line for each part of its :class:`NodePlan`, in that order: node, row, slot,
            weight. Empty when the vectors are those of the item's own tree. Of an item with pixels, which was encoded
            while it was planned, the row is -1 and the slot is a line of :attr:`RequestPlan.seen`.
    """

    fragments: Fragments
    hierarchy: Hierarchy
    tokens: Int32Array
    parts: Int32Array

    @property
    def cold(self) -> bool:
        """Whether the item did not bring its vectors."""
        return len(self.parts) > 0


@dataclass(frozen=True, slots=True, eq=False)
class RequestPlan:
    """All items of a request, in its order.

    Attributes:
        items: One plan an item; none where every item brings its tree, see :func:`indexed_trees`.
        window_counts: int32 ``[n]``, windows of each item for the retrieval encoder; empty where none are encoded, and
            0 for an item of which the plan has the vector.
        window_weights: int32 ``[W]``, tokens of each window.
        node_encoding: How the nodes of all of them are encoded.
        seen: float32 ``[K, D]``, the node encoder's vectors of items with pixels.
        seen_items: float32 ``[M, D]``, the retrieval encoder's vectors of the same items, in order.
    """

    items: list[ItemPlan]
    window_counts: Int32Array
    window_weights: Int32Array
    node_encoding: NodeEncoding = "separate"
    seen: Float32Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    seen_items: Float32Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    @property
    def seen_places(self) -> frozenset[int]:
        """Places of the items whose vectors the plan itself has."""
        return frozenset(place for place, plan in enumerate(self.items) if plan.cold and plan.parts[0, 1] == _SEEN)

    def with_windows(self, windows: ItemWindows) -> RequestPlan:
        """The same plan, which also knows the items' windows."""
        return replace(self, window_counts=windows.counts, window_weights=windows.weights)

    def trees(
        self, items: Sequence[Item], embeddings: Float32Array, *, revision: str, reader: bytes = bytes(8)
    ) -> list[Tree]:
        """The tree of each item.

        Args:
            items: The request's items.
            embeddings: float32 ``[R, S, D]``, the node encoder's answer to the rows.
            revision: The node encoder's revision.
            reader: Revision of the tokenizer that counted the tokens, 8 bytes.

        Raises:
            EncoderFailure: An item's vectors are not finite; the message names it.
            InvalidItem, EncoderMismatch: An item's own tree cannot be used; ``index`` is set.
        """
        self._require(len(items) == len(self.items), f"{len(items)} items meet a PLAN of {len(self.items)}")
        trees = []
        for index, (item, plan) in enumerate(zip(items, self.items, strict=True)):
            if plan.cold:
                name = f"item {index} ({item.id!r:.80})"
                vectors = plan_vectors(plan, embeddings, name, self.node_encoding, self.seen)
                content = content_hash(item)
                trees.append(Tree(revision, content, plan.fragments, plan.hierarchy, vectors, plan.tokens, reader))
            else:
                own = own_tree(item, index, revision)
                _require_dimension(own, embeddings.shape[2], item, index)
                trees.append(replace(own, tokens=plan.tokens, reader=reader))
        return trees

    def item_vectors(self, items: Sequence[Item], embeddings: Float32Array) -> Float32Array:
        """The retrieval vector of each item, float32 ``[n, D]``, from the retrieval encoder's answer ``[W, D]``.

        Raises:
            EncoderFailure: An item's vector is not finite; the message names it.
        """
        windows, dimension = len(self.window_weights), embeddings.shape[1]
        # Without any window, there is one row of padding.
        fit = len(items) == len(self.window_counts) and len(embeddings) == max(1, windows)
        self._require(fit, f"{len(items)} items and {len(embeddings)} windows do not fit PLAN")
        self._require(self.seen_items.shape[1:] == (dimension,) or not len(self.seen_items), "PLAN has other vectors")
        text = self.window_counts > 0
        for places, found in (
            (np.repeat(np.arange(len(items)), self.window_counts), embeddings[:windows]),
            (np.flatnonzero(~text), self.seen_items),
        ):
            broken = places[~np.isfinite(found).all(axis=1)]
            if len(broken):
                name = f"item {broken[0]} ({items[broken[0]].id!r:.80})"
                raise EncoderFailure(f"{name}: the retrieval encoder returned values that are not finite")
        vectors = np.empty((len(items), dimension), np.float32)
        vectors[~text] = self.seen_items.reshape(-1, dimension)
        if windows:
            vectors[text] = item_vectors(self.window_counts[text], self.window_weights, embeddings)
        return vectors

    def to_bytes(self) -> bytes:
        """The plan as the bytes of the ``PLAN`` tensor; int32 throughout."""
        table = [
            (UNITS.index(plan.fragments.unit), plan.hierarchy.branching, len(plan.fragments), len(plan.parts))
            for plan in self.items
        ]
        encoding = _ENCODINGS.index(self.node_encoding)
        head = [_MAGIC, _VERSION, encoding, len(self.items), len(self.window_counts), len(self.window_weights)]
        head += [len(self.seen), len(self.seen_items), self.seen.shape[1]]
        arrays = [np.array([*head, *chain.from_iterable(table)], np.int32)]
        for plan in self.items:
            arrays += [plan.fragments.spans.ravel(), plan.tokens, plan.parts.ravel()]
        arrays += [self.window_counts, self.window_weights]
        arrays += [np.ascontiguousarray(one, np.float32).view(np.int32).ravel() for one in (self.seen, self.seen_items)]
        return np.concatenate(arrays, dtype=np.int32).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes | npt.NDArray[np.uint8]) -> RequestPlan:
        """Read what :meth:`to_bytes` wrote; the arrays are views of ``data``.

        Raises:
            InvalidRequest: It is not a plan.
        """
        cls._require(len(data) % 4 == 0 and len(data) >= 4 * _HEAD_FIELDS, "PLAN has a wrong size")
        values = np.frombuffer(data, np.int32)
        magic, version, encoding, n_items, n_counts, n_windows, *seen = values[:_HEAD_FIELDS].tolist()
        cls._require((magic, version) == (_MAGIC, _VERSION), f"PLAN is not of version {_VERSION}")
        cls._require(0 <= encoding < len(_ENCODINGS), "PLAN names no node encoding")
        begin = _HEAD_FIELDS + _ITEM_FIELDS * n_items
        cls._require(n_items >= 0 and begin <= len(values), "PLAN is cut short")
        table = values[_HEAD_FIELDS:begin].reshape(n_items, _ITEM_FIELDS).tolist()
        sizes = [*chain.from_iterable((2 * f, f + 1, 4 * p) for _, _, f, p in table), n_counts, n_windows]
        sizes += [seen[0] * seen[2], seen[1] * seen[2]]
        sound = all(0 <= u < len(UNITS) and b >= 2 and f >= 1 and p >= 0 for u, b, f, p in table)
        sound = sound and min(*sizes, *seen) >= 0 and begin + sum(sizes) == len(values)
        cls._require(sound, "PLAN does not add up")
        arrays = [values[start:end] for start, end in pairwise(accumulate(sizes, initial=begin))]
        counts, weights, *vectors = arrays[-4:]
        sound = n_counts in (0, n_items) and int(counts.min(initial=0)) >= 0 and int(counts.sum()) == n_windows
        sound = sound and (not n_counts or int((counts == 0).sum()) == seen[1])
        cls._require(sound, "PLAN's windows do not add up")
        plans = [
            ItemPlan(
                Fragments(UNITS[unit], arrays[3 * place].reshape(-1, 2)),
                balanced(n_fragments, branching),
                arrays[3 * place + 1],
                arrays[3 * place + 2].reshape(-1, 4),
            )
            for place, (unit, branching, n_fragments, _) in enumerate(table)
        ]
        found = [array.view(np.float32).reshape(rows, seen[2]) for array, rows in zip(vectors, seen, strict=False)]
        return cls(plans, counts, weights, _ENCODINGS[encoding], *found)

    @staticmethod
    def _require(condition: bool, message: str) -> None:
        if not condition:
            raise InvalidRequest(message)


def plan_request(
    items: Sequence[Item],
    *,
    tokenizer: EncoderTokenizer,
    counter: TokenCounter,
    revision: str,
    limits: Limits,
    node_encoding: NodeEncoding = "separate",
    branching: int = BRANCHING,
    see: See | None = None,
) -> tuple[PackedRows, RequestPlan]:
    """Decide where each item's vectors come from, and pack what has to be encoded.

    Args:
        items: The request's items.
        tokenizer: The node encoder's.
        counter: The reader's.
        revision: The node encoder's revision; an item's own tree must have it.
        limits: The request's limits, of which ``max_fragments`` and ``max_rows`` are checked here.
        node_encoding: How the node encoder's nodes are encoded, as its manifest says.
        branching: Branching of hierarchies that are made here.
        see: Encodes items with pixels, after everything else was planned; without it, items are read and not seen.

    Returns:
        The rows, at least one, and the plan.

    Raises:
        InvalidItem, EncoderMismatch: An item's own tree cannot be used; ``index`` is set.
        LimitExceeded: An item has too many fragments, or the items without a tree fill too many rows.
    """
    plans: list[ItemPlan] = []
    node_plans: list[NodePlan | None] = []
    waiting: list[int] = []
    for index, item in enumerate(items):
        what = f"item {index} ({item.id!r:.80}): fragments"
        if item.tree is not None:
            tree = own_tree(item, index, revision)
            fragments, hierarchy = tree.fragments, tree.hierarchy
            limits.check("max_fragments", len(fragments), what)
            tokens = tree.tokens if tree.reader == counter.revision else count_tokens(item, fragments, counter)
            node_plans.append(None)
        else:
            if isinstance(item, VideoItem):  # known before any array of that size is made
                limits.check("max_fragments", int(item.duration_s * 1000 // SEGMENT_MS), what)
            fragments = fragment(item)
            limits.check("max_fragments", len(fragments), what)
            hierarchy = balanced(len(fragments), branching)
            tokens = count_tokens(item, fragments, counter)
            if see is not None and has_pictures(item):
                waiting.append(index)
                node_plans.append(None)
            else:
                node_plans.append(plan_nodes(item, fragments, hierarchy, tokenizer, node_encoding))
        plans.append(ItemPlan(fragments, hierarchy, tokens, np.zeros((0, 4), np.int32)))
    widest = row_width(tokenizer.window)
    rows, parts = place_sequences(node_plans, limits.max_rows, widest)
    if len(rows.input_ids) > limits.max_rows:
        _check_largest(items, node_plans, limits, widest)
    limits.check("max_rows", len(rows.input_ids), "token rows of the items without a tree")
    plans = [replace(plan, parts=part) for plan, part in zip(plans, parts, strict=True)]
    none = np.zeros(0, np.int32)
    plan = RequestPlan(plans, none, none, node_encoding)
    return rows, plan if see is None or not waiting else _look(plan, items, waiting, see)


def _look(plan: RequestPlan, items: Sequence[Item], waiting: Sequence[int], see: See) -> RequestPlan:
    """The plan with the vectors of the items with pixels."""
    plans = list(plan.items)
    vectors: list[Float32Array] = []
    whole: list[Float32Array] = []
    begin = 0
    for index in waiting:
        one = plans[index]
        try:
            found = see(index, items[index], one.fragments, one.hierarchy)
        except InvalidItem as error:
            raise error.at(index) from None
        slots = np.arange(begin, begin + len(found.nodes), dtype=np.int32)
        row = np.full(len(slots), _SEEN, np.int32)
        plans[index] = replace(one, parts=np.stack([found.nodes, row, slots, found.weights], axis=1))
        vectors.append(found.vectors)
        whole += [] if found.whole is None else [found.whole]
        begin += len(slots)
    seen = np.concatenate(vectors)
    seen_items = np.stack(whole) if whole else np.zeros((0, seen.shape[1]), np.float32)
    return replace(plan, items=plans, seen=seen, seen_items=seen_items)


def indexed_trees(
    items: Sequence[Item], *, revision: str, dimension: int, counter: TokenCounter, limits: Limits
) -> list[Tree]:
    """The trees of a request whose items all bring their own, so that nothing of it was planned.

    Args:
        items: The request's items.
        revision: The node encoder's revision, which each tree must have.
        dimension: The encoders' dimension.
        counter: The reader's; counts the tokens of a tree again that was made with another.
        limits: The request's limits, of which ``max_fragments`` is checked.

    Raises:
        InvalidItem, EncoderMismatch: A tree cannot be used; ``index`` is set.
        LimitExceeded: An item has too many fragments.
    """
    for index, item in enumerate(items):
        if item.tree is None:
            raise InvalidItem(
                "is missing: 'compress' encodes items without a tree", index=index, item_id=item.id, field="tree"
            )
    trees = decode_trees(items, revision=revision)
    for index, (item, tree) in enumerate(zip(items, trees, strict=True)):
        if len(tree.fragments) > limits.max_fragments:
            limits.check("max_fragments", len(tree.fragments), f"item {index} ({item.id!r:.80}): fragments")
        _require_dimension(tree, dimension, item, index)
        if tree.reader != counter.revision:
            tokens = count_tokens(item, tree.fragments, counter)
            trees[index] = replace(tree, tokens=tokens, reader=counter.revision)
    return trees


def plan_vectors(
    plan: ItemPlan,
    embeddings: Float32Array,
    name: str,
    node_encoding: NodeEncoding = "separate",
    seen: Float32Array | None = None,
) -> npt.NDArray[np.float16]:
    """The vectors of a cold item's nodes.

    Args:
        plan: The item's plan.
        embeddings: float32 ``[R, S, D]``, the node encoder's answer.
        name: What to call the item in an error.
        node_encoding: That of the plan.
        seen: float32 ``[K, D]``, the vectors that the plan itself has.

    Returns:
        float16 ``[N, D]``, unit length.

    Raises:
        EncoderFailure: A value is not finite.
        InvalidRequest: The plan points outside the embeddings, or leaves a leaf without a vector.
    """
    node, row, slot, weight = plan.parts.T
    if seen is not None and (row == _SEEN).all():
        embeddings = seen.reshape(1, *seen.shape)
        row = np.zeros_like(row)
        plan = replace(plan, parts=np.stack([node, row, slot, weight], axis=1))
    lowest = (-1 if node_encoding == "contextual" else 0, 0, 0, 0)
    bounds = (plan.hierarchy.size, *embeddings.shape[:2])
    if (plan.parts.min(axis=0) < lowest).any() or (plan.parts[:, :3].max(axis=0) >= bounds).any():
        raise InvalidRequest(f"{name}: PLAN points outside embeddings of shape {list(embeddings.shape)}")
    if not (windows_hold if node_encoding == "contextual" else leaves_covered)(plan.hierarchy, node):
        raise InvalidRequest(f"{name}: PLAN has no vector for one of its leaves, or they are out of order")
    vectors = embeddings[row, slot]
    if not np.isfinite(vectors).all():
        raise EncoderFailure(f"{name}: the node encoder returned values that are not finite")
    return node_vectors(plan.hierarchy, node, weight, vectors, node_encoding)


def own_tree(item: Item, index: int, revision: str) -> Tree:
    """The tree that an item brings along; errors say where in the request the item stands."""
    try:
        return decode_tree(item.tree or b"", item=item, revision=revision)
    except InvalidItem as error:
        raise error.at(index) from None


def _require_dimension(tree: Tree, used: int, item: Item, index: int) -> None:
    found = tree.vectors.shape[1]
    if found != used:
        reason = f"its vectors have {found} dimensions, this server's have {used}"
        raise InvalidItem(reason, index=index, item_id=item.id, field="tree")


def _check_largest(items: Sequence[Item], plans: Sequence[NodePlan | None], limits: Limits, widest: int) -> None:
    """Refuse a request by its largest item's name where that item is too large even alone."""
    sizes = [sum(map(len, plan.sequences)) if plan else 0 for plan in plans]
    index = max(range(len(sizes)), key=sizes.__getitem__)
    rows, _ = place_sequences([plans[index]], limits.max_rows, widest)
    limits.check("max_rows", len(rows.input_ids), f"item {index} ({items[index].id!r:.80}): token rows")

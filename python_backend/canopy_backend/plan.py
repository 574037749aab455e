"""The plan of one request: what its first model step hands to the last one, beside the encoder's rows.

The first step decides for each item whether its vectors come from its own tree or from the node encoder, packs what
has to be encoded, and writes the plan as one tensor. The last step reads it and has a :class:`Tree` for every item,
whichever way its vectors came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise, repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from canopy_backend.encoding import ItemWindows, NodePlan, count_tokens, item_vectors, node_vectors, plan_nodes
from canopy_backend.errors import EncoderFailure, InvalidItem, InvalidRequest
from canopy_backend.fragments import Fragments, fragment
from canopy_backend.fragments.video import SEGMENT_MS
from canopy_backend.hierarchy import BRANCHING, Hierarchy, balanced
from canopy_backend.items import Item, VideoItem
from canopy_backend.limits import Limits
from canopy_backend.manifest import NodeEncoding
from canopy_backend.packing import PackedRows, empty_row, longest, pack, row_width
from canopy_backend.tokenization import EncoderTokenizer, TokenCounter
from canopy_backend.tree import UNITS, Tree, content_hash, decode_tree, decode_trees

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
IntpArray = npt.NDArray[np.intp]

_MAGIC: Final = 0x4E4C5043
_VERSION: Final = 2
_ENCODINGS: Final[tuple[NodeEncoding, ...]] = ("separate", "contextual")
_HEAD_FIELDS: Final = 6  # magic, version, node encoding, items, window counts, windows
_ITEM_FIELDS: Final = 4  # unit, branching, fragments, parts


@dataclass(frozen=True, slots=True, eq=False)
class ItemPlan:
    """One item of a request.

    Attributes:
        fragments: Its fragments.
        hierarchy: The nodes over them.
        tokens: int32 ``[F + 1]``, the reader's tokens of each fragment and then of the prefix.
        parts: int32 ``[P, 4]``, one line for each part of its :class:`NodePlan`, in that order: node, row, slot,
            weight. Empty when the vectors are those of the item's own tree.
    """

    fragments: Fragments
    hierarchy: Hierarchy
    tokens: Int32Array
    parts: Int32Array

    @property
    def cold(self) -> bool:
        """Whether the vectors come from the node encoder."""
        return len(self.parts) > 0


@dataclass(frozen=True, slots=True, eq=False)
class RequestPlan:
    """All items of a request, in its order.

    Attributes:
        items: One plan an item; none where every item brings its tree, see :func:`indexed_trees`.
        window_counts: int32 ``[n]``, windows of each item for the retrieval encoder; empty where none are encoded.
        window_weights: int32 ``[W]``, tokens of each window.
        node_encoding: How the nodes of all of them are encoded.
    """

    items: list[ItemPlan]
    window_counts: Int32Array
    window_weights: Int32Array
    node_encoding: NodeEncoding = "separate"

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
                vectors = plan_vectors(plan, embeddings, name, self.node_encoding)
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
        fit = len(items) == len(self.window_counts) and len(embeddings) == len(self.window_weights)
        self._require(fit, f"{len(items)} items and {len(embeddings)} windows do not fit PLAN")
        broken = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
        if len(broken):
            index = int(np.searchsorted(np.cumsum(self.window_counts), broken[0], side="right"))
            raise EncoderFailure(
                f"item {index} ({items[index].id!r:.80}): the retrieval encoder returned values that are not finite"
            )
        return item_vectors(self.window_counts, self.window_weights, embeddings)

    def to_bytes(self) -> bytes:
        """The plan as the bytes of the ``PLAN`` tensor; int32 throughout."""
        table = [
            (UNITS.index(plan.fragments.unit), plan.hierarchy.branching, len(plan.fragments), len(plan.parts))
            for plan in self.items
        ]
        encoding = _ENCODINGS.index(self.node_encoding)
        head = [_MAGIC, _VERSION, encoding, len(self.items), len(self.window_counts), len(self.window_weights)]
        arrays = [np.array([*head, *chain.from_iterable(table)], np.int32)]
        for plan in self.items:
            arrays += [plan.fragments.spans.ravel(), plan.tokens, plan.parts.ravel()]
        arrays += [self.window_counts, self.window_weights]
        return np.concatenate(arrays, dtype=np.int32).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes | npt.NDArray[np.uint8]) -> RequestPlan:
        """Read what :meth:`to_bytes` wrote; the arrays are views of ``data``.

        Raises:
            InvalidRequest: It is not a plan.
        """
        cls._require(len(data) % 4 == 0 and len(data) >= 4 * _HEAD_FIELDS, "PLAN has a wrong size")
        values = np.frombuffer(data, np.int32)
        magic, version, encoding, n_items, n_counts, n_windows = values[:_HEAD_FIELDS].tolist()
        cls._require((magic, version) == (_MAGIC, _VERSION), f"PLAN is not of version {_VERSION}")
        cls._require(0 <= encoding < len(_ENCODINGS), "PLAN names no node encoding")
        begin = _HEAD_FIELDS + _ITEM_FIELDS * n_items
        cls._require(n_items >= 0 and begin <= len(values), "PLAN is cut short")
        table = values[_HEAD_FIELDS:begin].reshape(n_items, _ITEM_FIELDS).tolist()
        sizes = [*chain.from_iterable((2 * f, f + 1, 4 * p) for _, _, f, p in table), n_counts, n_windows]
        sound = all(0 <= u < len(UNITS) and b >= 2 and f >= 1 and p >= 0 for u, b, f, p in table)
        sound = sound and min(sizes) >= 0 and begin + sum(sizes) == len(values)
        cls._require(sound, "PLAN does not add up")
        arrays = [values[start:end] for start, end in pairwise(accumulate(sizes, initial=begin))]
        counts = arrays[-2]
        sound = n_counts in (0, n_items) and int(counts.min(initial=1)) >= 1 and int(counts.sum()) == n_windows
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
        return cls(plans, arrays[-2], arrays[-1], _ENCODINGS[encoding])

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

    Returns:
        The rows, at least one, and the plan.

    Raises:
        InvalidItem, EncoderMismatch: An item's own tree cannot be used; ``index`` is set.
        LimitExceeded: An item has too many fragments, or the items without a tree fill too many rows.
    """
    plans: list[ItemPlan] = []
    node_plans: list[NodePlan | None] = []
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
            node_plans.append(plan_nodes(item, fragments, hierarchy, tokenizer, node_encoding))
        plans.append(ItemPlan(fragments, hierarchy, tokens, np.zeros((0, 4), np.int32)))
    widest = row_width(tokenizer.window)
    rows, parts = _place(node_plans, limits.max_rows, widest)
    if len(rows.input_ids) > limits.max_rows:
        _check_largest(items, node_plans, limits, widest)
    limits.check("max_rows", len(rows.input_ids), "token rows of the items without a tree")
    plans = [replace(plan, parts=part) for plan, part in zip(plans, parts, strict=True)]
    none = np.zeros(0, np.int32)
    return rows, RequestPlan(plans, none, none, node_encoding)


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
    plan: ItemPlan, embeddings: Float32Array, name: str, node_encoding: NodeEncoding = "separate"
) -> npt.NDArray[np.float16]:
    """The vectors of a cold item's nodes.

    Args:
        plan: The item's plan.
        embeddings: float32 ``[R, S, D]``, the node encoder's answer.
        name: What to call the item in an error.
        node_encoding: That of the plan.

    Returns:
        float16 ``[N, D]``, unit length.

    Raises:
        EncoderFailure: A value is not finite.
        InvalidRequest: The plan points outside the embeddings, or leaves a leaf without a vector.
    """
    node, row, slot, weight = plan.parts.T
    lowest = (-1 if node_encoding == "contextual" else 0, 0, 0, 0)
    bounds = (plan.hierarchy.size, *embeddings.shape[:2])
    if (plan.parts.min(axis=0) < lowest).any() or (plan.parts[:, :3].max(axis=0) >= bounds).any():
        raise InvalidRequest(f"{name}: PLAN points outside embeddings of shape {list(embeddings.shape)}")
    if not (_windows_hold if node_encoding == "contextual" else _leaves_covered)(plan.hierarchy, node):
        raise InvalidRequest(f"{name}: PLAN has no vector for one of its leaves, or they are out of order")
    vectors = embeddings[row, slot]
    if not np.isfinite(vectors).all():
        raise EncoderFailure(f"{name}: the node encoder returned values that are not finite")
    return node_vectors(plan.hierarchy, node, weight, vectors, node_encoding)


def _leaves_covered(hierarchy: Hierarchy, node: Int32Array) -> bool:
    """Whether the parts stand in the order of nodes, with at least one for each leaf."""
    covered = np.zeros(hierarchy.size, np.bool_)
    covered[node] = True
    return bool((np.diff(node) >= 0).all() and covered[hierarchy.is_leaf].all())


def _windows_hold(hierarchy: Hierarchy, node: Int32Array) -> bool:
    """Whether a context comes first, and then leaves in source order; a leaf without tokens has no part."""
    leaves = node[node >= 0]
    in_order = (np.diff(hierarchy.first[leaves]) >= 0).all()
    return bool(node[0] < 0 and hierarchy.is_leaf[leaves].all() and in_order)


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
    rows, _ = _place([plans[index]], limits.max_rows, widest)
    limits.check("max_rows", len(rows.input_ids), f"item {index} ({items[index].id!r:.80}): token rows")


def _place(plans: Sequence[NodePlan | None], max_rows: int, widest: int) -> tuple[PackedRows, list[Int32Array]]:
    """Pack the sequences of all items, equal ones once; then each item's parts with their places.

    Rows are as narrow as the longest sequence allows, and wider, up to ``widest``, where they would be too many.
    """
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    which = [[known.setdefault(key, len(known)) for key in _keys(plan)] if plan else [] for plan in plans]
    if not known:
        return empty_row(), [np.zeros((0, 4), np.int32) for _ in plans]
    sequences = [sequence for sequence, _ in known]
    layouts = [layout for _, layout in known if layout] or None
    width = row_width(longest(sequences, layouts))
    rows = pack(sequences, width, layouts)
    while len(rows.input_ids) > max_rows and width < widest:
        width *= 2
        rows = pack(sequences, width, layouts)
    counts = np.ones(len(known), np.intp)
    for plan, mine in zip(plans, which, strict=True):
        if plan:
            counts[mine] = np.bincount(plan.sequence)
    begins = np.cumsum(counts) - counts
    none = np.zeros((0, 4), np.int32)
    return rows, [_parts(plan, rows, begins[mine]) if plan else none for plan, mine in zip(plans, which, strict=True)]


def _keys(plan: NodePlan) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What tells the sequences of a plan apart: tokens and layout, which is empty where a sequence is one part."""
    if plan.layouts is None:
        return zip(map(tuple, plan.sequences), repeat(()))
    return zip(map(tuple, plan.sequences), map(tuple, plan.layouts), strict=True)


def _parts(plan: NodePlan, rows: PackedRows, begins: IntpArray) -> Int32Array:
    """The lines of :class:`ItemPlan`; ``begins`` is where the parts of each of the item's sequences begin."""
    sequence = plan.sequence
    within = np.arange(len(sequence)) - np.searchsorted(sequence, sequence)
    return np.column_stack([plan.nodes, rows.slots[begins[sequence] + within], plan.weights])

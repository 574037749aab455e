"""From an item to token sequences, and from the encoder's answer to one vector a node.

With ``separate``, a node whose text fits the encoder's window is one sequence. One that does not fit has none: its
vector is the token-weighted mean of its children's, at unit length again. Only a leaf can be cut: into windows, which
are pooled the same way. With ``contextual``, the item is encoded once and nodes are pooled from their tokens' states
(:mod:`canopy_backend.contextual`). Normalisation and rounding to float16 happen in :func:`node_vectors` and nowhere
else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from canopy_backend.contextual import lay, node_sums
from canopy_backend.fragments import Fragments, renderer
from canopy_backend.hierarchy import Hierarchy
from canopy_backend.items import Item
from canopy_backend.manifest import NodeEncoding
from canopy_backend.templates import item_text, node_text, prefix_text
from canopy_backend.tokenization import EncoderTokenizer, TokenCounter, TokenIds

#: White space on which the word-splitting tokenizers, after their normalisation, always cut.
_SPACES: Final = frozenset(" \t\n\r")

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class NodePlan:
    """What has to be encoded for one item: sequences, and the parts of which the encoder gives mean states.

    Attributes:
        sequences: S token sequences with special tokens, none longer than the window.
        layouts: For each token of each sequence its part, counted from 0 in the sequence; ``None`` where a sequence is
            one part, which is ``separate``.
        nodes: int32 ``[P]``, the node that each part belongs to. ``separate``: ascending; a node without a part is
            pooled from its children. ``contextual``: -1 for the context, the first part of each window, then leaves.
        weights: int32 ``[P]``, tokens of each part. ``separate``: prefix and special tokens not counted, at least 1.
        sequence: int32 ``[P]``, the sequence of each part; parts stand in the order of sequences.
    """

    sequences: list[TokenIds]
    layouts: list[list[int]] | None
    nodes: Int32Array
    weights: Int32Array
    sequence: Int32Array


@dataclass(frozen=True, slots=True, eq=False)
class ItemWindows:
    """The windows of whole items, for the retrieval encoder.

    Attributes:
        sequences: W token sequences with special tokens.
        counts: int32 ``[n]``, windows of each item, at least 1; 0 for one that was seen.
        weights: int32 ``[W]``, tokens of each window, special tokens not counted, at least 1.
    """

    sequences: list[TokenIds]
    counts: Int32Array
    weights: Int32Array


def fragment_bodies(item: Item, fragments: Fragments) -> tuple[str, list[str]]:
    """The text that every node starts with, and what each fragment adds to it, the line break between not included."""
    prefix = prefix_text(item)
    skipped = len(prefix) + 1 if prefix else 0
    show = renderer(item, fragments)
    texts = (node_text(item, show(place, place + 1)) for place in range(len(fragments)))
    return prefix, [text[skipped:] for text in texts]


def count_tokens(item: Item, fragments: Fragments, counter: TokenCounter) -> Int32Array:
    """The reader's tokens of each fragment and then of the prefix, int32 ``[F + 1]``."""
    prefix, bodies = fragment_bodies(item, fragments)
    return counter.count([*bodies, prefix])


def plan_nodes(
    item: Item,
    fragments: Fragments,
    hierarchy: Hierarchy,
    tokenizer: EncoderTokenizer,
    node_encoding: NodeEncoding = "separate",
) -> NodePlan:
    """The token sequences of an item's nodes.

    Args:
        item: The item.
        fragments: Its fragments.
        hierarchy: The nodes over them.
        tokenizer: The node encoder's.
        node_encoding: How the node encoder's nodes are encoded, as its manifest says.
    """
    prefix, bodies = fragment_bodies(item, fragments)
    if node_encoding == "contextual":
        return _contextual(item, prefix, bodies, hierarchy, tokenizer)
    ids = tokenizer.encode_plain([prefix and prefix + "\n", *bodies])
    start, leaves = ids[0], ids[1:]
    if tokenizer.splits_at_space and _separable(item, bodies):
        whole = _joined(start, leaves, hierarchy, tokenizer)
    else:
        whole = _tokenized(item, fragments, hierarchy, tokenizer)
    extra = len(start) + len(tokenizer.head) + len(tokenizer.tail)
    sequences: list[TokenIds] = []
    nodes: list[int] = []
    weights: list[int] = []
    is_leaf = hierarchy.is_leaf.tolist()
    for node, sequence in enumerate(whole):
        if sequence is not None:
            sequences.append(sequence)
            nodes.append(node)
            weights.append(len(sequence) - extra)
        elif is_leaf[node]:
            cut = tokenizer.windows(leaves[int(hierarchy.first[node])], start)
            overhead = extra if tokenizer.repeats(start) else extra - len(start)
            sequences += cut
            nodes += [node] * len(cut)
            weights += [len(window) - overhead for window in cut]
    each = np.arange(len(sequences), dtype=np.int32)
    return NodePlan(sequences, None, np.array(nodes, np.int32), np.maximum(1, np.array(weights, np.int32)), each)


def _contextual(
    item: Item, prefix: str, bodies: Sequence[str], hierarchy: Hierarchy, tokenizer: EncoderTokenizer
) -> NodePlan:
    """The windows of an item, each leaf's text tokenized by itself."""
    # A row and a segment are lines; a sentence has its white space with it.
    glue = "" if item.modality == "text" else "\n"
    lines = [body and body + glue for body in bodies[:-1]]
    start, *leaves = tokenizer.encode_plain([prefix and prefix + "\n", *lines, bodies[-1]])
    windows = lay(start, leaves, tokenizer)
    around = len(tokenizer.head) + len(tokenizer.tail)
    leaf_nodes = np.flatnonzero(hierarchy.is_leaf)
    node_of = leaf_nodes[np.argsort(hierarchy.first[leaf_nodes])].tolist()
    nodes: list[int] = []
    weights: list[int] = []
    for window in windows:
        nodes += [-1, *(node_of[place] for place, _ in window.pieces)]
        weights += [around + len(window.lead), *(len(piece) for _, piece in window.pieces)]
    sequence = np.repeat(np.arange(len(windows), dtype=np.int32), [1 + len(window.pieces) for window in windows])
    return NodePlan(
        [window.sequence(tokenizer) for window in windows],
        [window.layout(tokenizer) for window in windows],
        np.array(nodes, np.int32),
        np.array(weights, np.int32),
        sequence,
    )


def _separable(item: Item, bodies: Sequence[str]) -> bool:
    """Whether a node's tokens are its fragments' tokens one after another, given a tokenizer that cuts at spaces.

    The prefix is a line of its own in any case.
    """
    if item.modality == "video":
        return False  # a line of a transcript may belong to two segments, and stands once in a node that holds both
    if item.modality == "table":
        return True  # a row is a line
    return all(left[-1] in _SPACES or right[0] in _SPACES for left, right in pairwise(filter(None, bodies)))


def _joined(
    prefix: TokenIds, leaves: Sequence[TokenIds], hierarchy: Hierarchy, tokenizer: EncoderTokenizer
) -> list[TokenIds | None]:
    """The sequence of each node, put together from its fragments'; ``None`` where it is too long."""
    flat = list(chain.from_iterable(leaves))
    edges = np.fromiter(accumulate(map(len, leaves), initial=0), np.int64, len(leaves) + 1)
    starts, ends = edges[hierarchy.first], edges[hierarchy.last]
    fits = (ends - starts + len(prefix) <= tokenizer.room).tolist()
    head, tail = [*tokenizer.head, *prefix], tokenizer.tail
    return [
        [*head, *flat[start:end], *tail] if fit else None
        for start, end, fit in zip(starts.tolist(), ends.tolist(), fits, strict=True)
    ]


def _tokenized(
    item: Item, fragments: Fragments, hierarchy: Hierarchy, tokenizer: EncoderTokenizer
) -> list[TokenIds | None]:
    """The sequence of each node, from its own text; ``None`` where it is too long.

    From the deepest level up. A node is tried only where all of its children fit, so no text that is tokenized is much
    longer than the children of one node together.
    """
    whole: list[TokenIds | None] = [None] * hierarchy.size
    viable = np.ones(hierarchy.size, np.bool_)
    for depth in range(hierarchy.height, -1, -1):
        level = np.flatnonzero(hierarchy.depth == depth)
        tried = level[viable[level]]
        runs = zip(hierarchy.first[tried].tolist(), hierarchy.last[tried].tolist(), strict=True)
        show = renderer(item, fragments)
        sequences = tokenizer.encode([node_text(item, show(first, last)) for first, last in runs])
        fits = np.fromiter((len(sequence) <= tokenizer.window for sequence in sequences), np.bool_, len(sequences))
        for node, sequence, fit in zip(tried.tolist(), sequences, fits.tolist(), strict=True):
            whole[node] = sequence if fit else None
        viable[tried] = fits
        if depth:
            viable[hierarchy.parent[level[~viable[level]]]] = False
    return whole


def node_vectors(
    hierarchy: Hierarchy,
    nodes: Int32Array,
    weights: Int32Array,
    embeddings: Float32Array,
    node_encoding: NodeEncoding = "separate",
) -> npt.NDArray[np.float16]:
    """One vector for each node of an item.

    Args:
        hierarchy: The item's nodes.
        nodes: int32 ``[P]`` of its :class:`NodePlan`.
        weights: int32 ``[P]`` of the same.
        embeddings: float32 ``[P, D]``, the encoder's answer for each part, of any length.
        node_encoding: That of the plan.

    Returns:
        float16 ``[N, D]``, unit length; zeros where the answer was zeros.
    """
    if node_encoding == "contextual":
        return unit(node_sums(hierarchy, nodes, weights, embeddings)).astype(np.float16)
    embeddings = unit(embeddings)
    single = len(nodes) == hierarchy.size and bool((np.diff(nodes) == 1).all())
    if single:
        return embeddings.astype(np.float16)
    starts = np.flatnonzero(np.diff(nodes, prepend=-1))
    given = nodes[starts]
    vectors = np.zeros((hierarchy.size, embeddings.shape[1]), np.float32)
    mass = np.zeros(hierarchy.size, np.float32)
    vectors[given], mass[given] = _pool(embeddings, weights.astype(np.float32), starts)
    missing = np.ones(hierarchy.size, np.bool_)
    missing[given] = False
    for depth in np.unique(hierarchy.depth[missing])[::-1]:
        parents = np.flatnonzero(missing & (hierarchy.depth == depth))
        counts = hierarchy.child_count[parents]
        firsts = np.cumsum(counts) - counts
        children = np.repeat(hierarchy.child_start[parents] - firsts, counts) + np.arange(counts.sum())
        vectors[parents], mass[parents] = _pool(vectors[children], mass[children], firsts)
    return vectors.astype(np.float16)


def plan_items(items: Sequence[Item], tokenizer: EncoderTokenizer, seen: Collection[int] = ()) -> ItemWindows:
    """The windows that hold each item's whole text, for its retrieval vector.

    Args:
        items: n items.
        tokenizer: The retrieval encoder's.
        seen: Places of items that have no windows, as they were encoded with their pixels.
    """
    sequences: list[TokenIds] = []
    counts: list[int] = []
    special = len(tokenizer.head) + len(tokenizer.tail)
    texts = tokenizer.encode_plain(["" if place in seen else item_text(item) for place, item in enumerate(items)])
    for place, ids in enumerate(texts):
        cut = [] if place in seen else tokenizer.windows(ids)
        counts.append(len(cut))
        sequences += cut
    weights = np.fromiter((max(1, len(sequence) - special) for sequence in sequences), np.int32, len(sequences))
    return ItemWindows(sequences, np.array(counts, np.int32), weights)


def item_vectors(counts: Int32Array, weights: Int32Array, embeddings: Float32Array) -> Float32Array:
    """One retrieval vector for each item.

    Args:
        counts: int32 ``[n]`` of :class:`ItemWindows`.
        weights: int32 ``[W]`` of the same.
        embeddings: float32 ``[W, D]``, the encoder's answer for each window.

    Returns:
        float32 ``[n, D]``, unit length.
    """
    pooled, _ = _pool(embeddings, weights.astype(np.float32), np.cumsum(counts) - counts)
    return pooled


def unit(vectors: Float32Array) -> Float32Array:
    """Float32 ``[n, D]`` at length one; a row of zeros stays as it is."""
    norms = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
    scaled: Float32Array = vectors / np.maximum(norms, np.finfo(np.float32).tiny)
    return scaled


def _pool(
    vectors: Float32Array, weights: Float32Array, starts: npt.NDArray[np.integer]
) -> tuple[Float32Array, Float32Array]:
    """Weighted mean of each run of rows, at unit length, and the run's weight; a run of one row stays as it is.

    ``starts`` are the runs' first rows. Each run is summed on its own, so its result does not depend on the others.
    """
    mass: Float32Array = np.add.reduceat(weights, starts)
    if len(starts) == len(vectors):
        return vectors, mass
    pooled = unit(np.add.reduceat(vectors * weights[:, None], starts))
    alone = np.diff(starts, append=len(vectors)) == 1
    pooled[alone] = vectors[starts[alone]]
    return pooled, mass
